"""TorchAO's ``to_mx`` and ``to_dtype`` as peers: the same bytes where the specification agrees.

Each difference (TorchAO 0.18) is a ``test_difference_*`` of ``test_torchao_differences.py``. The
parity tests leave out exactly the blocks that those name, by predicates that state the rule on the
input (``same_scale``, ``same_payload``), never by what came out.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from oracle import E8M0_BIAS, FORMATS, MODES, RCEIL, shared_exponent
from torch import Tensor
from torchao_peer import (
    BLOCK_SIZE,
    bfloat16_maxima,
    dequantized,
    each_format,
    each_input_dtype,
    each_mode,
    float32_thresholds,
    ours,
    random_blocks,
    theirs,
)

INT_VIEWS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


# --- where they must agree ------------------------------------------------------------------------


def quotient_rounds_to_a_power_of_two(amax: Tensor, fmt: str) -> Tensor:
    """RCEIL, rule of ``test_difference_rceil_takes_the_logarithm_in_float32``.

    ``amax / max_normal`` is above a power of two by so little that its logarithm is within one
    float32 step of the integer (one and not half: no library's ``log2`` rounds correctly).
    """
    logarithm = np.log2(amax.numpy() / FORMATS[fmt].max_normal)
    integer = np.round(logarithm)
    excess = logarithm - integer
    return torch.from_numpy((excess > 0) & (excess <= np.spacing(np.float32(np.abs(integer)))))


def same_scale(x: Tensor, fmt: str, mode: int) -> Tensor:
    """Of each block whether the specification's scale byte is TorchAO's too."""
    amax = x.double().abs().amax(-1)
    same = ~amax.isinf()  # test_difference_inf_block; a NaN block's is 0xFF for both
    if mode == RCEIL:
        one = torch.ones(())  # keeps zero, NaN and Inf out of the logarithm
        ordinary = amax.isfinite() & (amax > 0)
        rounded = quotient_rounds_to_a_power_of_two(torch.where(ordinary, amax, one), fmt)
        same &= ~(ordinary & rounded)
    return same


def same_payload(x: Tensor, fmt: str, mode: int) -> Tensor:
    """Of each block whether the specification's codes are TorchAO's too."""
    amax = x.double().abs().amax(-1)
    finite_amax = torch.where(amax.isfinite() & (amax > 0), amax, torch.ones(())).numpy()
    exponent = torch.from_numpy(shared_exponent(finite_amax, FORMATS[fmt], mode))
    byte_0 = (amax > 0) & (exponent <= -E8M0_BIAS)  # test_difference_scale_byte_0
    return same_scale(x, fmt, mode) & ~amax.isnan() & ~byte_0  # test_difference_nan_block


def assert_parity(x: Tensor, fmt: str, mode: int) -> None:
    """The same bytes for ``x``, one block per row, apart from the named differences."""
    (output, scale), (peer_output, peer_scale) = ours(x, fmt, mode), theirs(x, fmt, mode)
    agreed = same_payload(x, fmt, mode)
    assert agreed.double().mean() > 0.85, "the predicate leaves too much out"
    for name, mine, peer, rows in (
        ("scale", scale, peer_scale, same_scale(x, fmt, mode)),
        ("payload", output, peer_output, agreed),
    ):
        assert mine.shape == peer.shape
        wrong = (rows & (mine != peer).any(-1)).nonzero().flatten().tolist()
        assert not wrong, (
            f"{name} of {len(wrong)} blocks, the first: {x[wrong[0]].tolist()} gives "
            f"{mine[wrong[0]].tolist()}, TorchAO {peer[wrong[0]].tolist()}"
        )


@each_input_dtype
@each_mode
@each_format
def test_random_blocks(fmt: str, mode: int, dtype: torch.dtype) -> None:
    assert_parity(random_blocks().to(dtype), fmt, mode)


@each_input_dtype
@each_mode
@each_format
def test_every_bfloat16_as_block_maximum(fmt: str, mode: int, dtype: torch.dtype) -> None:
    assert_parity(bfloat16_maxima().to(dtype), fmt, mode)


@pytest.mark.parametrize(
    "mode", [m for m in MODES.values() if m != RCEIL], ids=[m for m in MODES if m != "rceil"]
)
@each_format
def test_float32_thresholds(fmt: str, mode: int) -> None:
    assert_parity(float32_thresholds(), fmt, mode)


@each_format
def test_float32_thresholds_rceil(fmt: str) -> None:
    """The blocks left out are the ones just above the format's own threshold, nothing more."""
    x = float32_thresholds()
    out = ~same_scale(x, fmt, RCEIL)
    significand = x[out].abs().amax(-1).frexp().mantissa * 2
    threshold = FORMATS[fmt].max_normal / 2.0 ** FORMATS[fmt].emax
    assert out.any()
    assert ((significand > threshold) & (significand < threshold + 2.0**-20)).all()
    assert_parity(x, fmt, RCEIL)


@pytest.mark.parametrize("block_size", [2, 16, 64])
@each_format
def test_block_sizes_and_ranks(fmt: str, block_size: int) -> None:
    x = torch.randn(2, 3, 2 * 64, generator=torch.Generator().manual_seed(1))
    for x_n, mode in itertools.product((x[0, 0], x[0], x, x[:0], x[:, :0]), MODES.values()):
        mine = ours(x_n, fmt, mode, block_size=block_size)
        peer = theirs(x_n, fmt, mode, block_size=block_size)
        for a, b in zip(mine, peer, strict=True):
            assert a.shape == b.shape
            assert torch.equal(a, b)


# --- swizzled scales ------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(
    "shape",
    [(1, 32), (5, 64), (128, 128), (130, 160), (257, 544), (2, 128, 96), (3, 2, 256, 64)],
    ids=lambda shape: "x".join(map(str, shape)),
)
@pytest.mark.parametrize("fmt", ["fp8_e4m3", "fp6_e2m3", "fp4_e2m1"])
def test_swizzled_scales(fmt: str, shape: tuple[int, ...], mode: int) -> None:
    """The same bytes, padding and shape; each scale of the tensor is drawn on its own."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=generator).unflatten(-1, (-1, BLOCK_SIZE))
    x = torch.ldexp(x, torch.randint(-100, 100, x.shape[:-1], generator=generator).unsqueeze(-1))
    for mine, peer in zip(
        ours(x.flatten(-2), fmt, mode, True), theirs(x.flatten(-2), fmt, mode, True), strict=True
    ):
        assert mine.shape == peer.shape
        assert torch.equal(mine, peer)


# --- dequantization -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INT_VIEWS, ids=lambda d: str(d)[6:])
@each_format
def test_dequantize_every_code_under_every_scale(fmt: str, dtype: torch.dtype) -> None:
    """The same bits, and NaN at the same places (test_difference_dequantized_nan)."""
    codes = 64 if fmt.startswith("fp6") else 256  # test_difference_dequantize_fp6_high_bits
    scale_bytes = torch.arange(256, dtype=torch.uint8)
    if dtype is torch.float16:  # test_difference_dequantize_to_float16
        scale_bytes = torch.cat((scale_bytes[127 - 24 : 127 + 16], scale_bytes[-1:]))
    payload = torch.arange(codes).to(torch.uint8).expand(len(scale_bytes), codes).contiguous()
    blocks = codes * (2 if fmt == "fp4_e2m1" else 1) // BLOCK_SIZE
    scale = scale_bytes.unsqueeze(1).expand(-1, blocks).contiguous()
    mine, peer = dequantized(payload, scale, fmt, dtype)
    assert mine.dtype is peer.dtype is dtype
    assert torch.equal(mine.isnan(), peer.isnan())
    number = ~mine.isnan()
    assert torch.equal(mine.view(INT_VIEWS[dtype])[number], peer.view(INT_VIEWS[dtype])[number])
