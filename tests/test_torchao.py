"""TorchAO's ``to_mx`` as a peer: the same bytes wherever the contract does not say otherwise.

Each difference (TorchAO 0.18) is a named test that pins both sides, with the reason. The parity
tests leave out exactly the inputs that those reasons cover.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

import aten_mx
from aten_mx import ScaleCalculationMode
from aten_mx.formats import FORMATS, ElementFormat

with warnings.catch_warnings():
    # TorchAO warns about optional extensions and deprecated registrations when it is imported.
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats import config, mx_tensor

BLOCK_SIZE = 32
PEER_FORMATS = [fmt for fmt in FORMATS.values() if not fmt.twos_complement]  # it has no INT8
MODES = list(ScaleCalculationMode)
DTYPES = [torch.float32, torch.bfloat16]
GRID = pytest.mark.parametrize(
    ("fmt", "mode", "dtype"),
    [
        pytest.param(f, m, d, id=f"{f.name}-{m.name.lower()}-{str(d)[6:]}")
        for f, m, d in itertools.product(PEER_FORMATS, MODES, DTYPES)
    ],
)


def peer(
    x: Tensor, fmt: ElementFormat, mode: ScaleCalculationMode, swizzled: bool = False
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of TorchAO, in our order."""
    element = fmt.dtype or fmt.name
    scale, output = mx_tensor.to_mx(
        x, element, BLOCK_SIZE, config.ScaleCalculationMode(mode.name.lower()), swizzled
    )
    return output.view(torch.uint8), scale.view(torch.uint8)


def ours(
    x: Tensor, fmt: ElementFormat, mode: ScaleCalculationMode, swizzled: bool = False
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of the op."""
    output, scale = torch.ops.aten_mx.quantize_mx.format(
        x, -1, BLOCK_SIZE, fmt.name, int(mode), swizzle_type=int(swizzled)
    )
    return output.view(torch.uint8), scale.view(torch.uint8)


def agreeing(x: Tensor, fmt: ElementFormat) -> Tensor:
    """The blocks of ``x`` that no named difference below covers."""
    amax = x.float().abs().amax(-1)
    # TorchAO divides by 2^-126 under scale byte 0, and its own rounding of float32's top differs;
    # four binades at either end keep clear of both in every mode.
    low = 2.0 ** (fmt.emax - 122)
    keep = amax.isfinite() & ((amax > low) | (amax == 0)) & (amax < 2.0**124)
    return x[keep]


def assert_same(x: Tensor, fmt: ElementFormat, mode: ScaleCalculationMode) -> None:
    for mine, theirs in zip(ours(x, fmt, mode), peer(x, fmt, mode), strict=True):
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)


@GRID
def test_random_blocks(fmt: ElementFormat, mode: ScaleCalculationMode, dtype: torch.dtype) -> None:
    """Normal values at many magnitudes, and blocks whose elements span many binades."""
    generator = torch.Generator().manual_seed(86)
    rows = torch.randn(2048, BLOCK_SIZE, generator=generator)
    magnitudes = 2.0 ** torch.randint(-120, 120, (2048, 1), generator=generator).float()
    spread = 2.0 ** torch.randint(-30, 1, rows.shape, generator=generator).float()
    x = torch.cat((rows, rows * magnitudes, rows * spread)).to(dtype)
    assert_same(agreeing(x, fmt), fmt, mode)


@GRID
def test_every_bfloat16_as_block_maximum(
    fmt: ElementFormat, mode: ScaleCalculationMode, dtype: torch.dtype
) -> None:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    fractions = torch.linspace(-1, 1, BLOCK_SIZE)
    x = patterns.float().unsqueeze(1) * fractions
    x[:, 5] = patterns.float()
    assert_same(agreeing(x.to(dtype), fmt), fmt, mode)


@pytest.mark.parametrize("shape", [(128, 128), (5, 64), (130, 160), (2, 128, 96), (3, 2, 256, 64)])
@pytest.mark.parametrize("fmt", PEER_FORMATS, ids=lambda fmt: fmt.name)
def test_swizzled_scales(fmt: ElementFormat, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    mine, theirs = ours(x, fmt, MODES[0], True), peer(x, fmt, MODES[0], True)
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape
        assert torch.equal(a, b)


@pytest.mark.parametrize("fmt", PEER_FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dequantized(fmt: ElementFormat, dtype: torch.dtype) -> None:
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(2)) * 3
    output, scale = torch.ops.aten_mx.quantize_mx.format(x, -1, BLOCK_SIZE, fmt.name)
    theirs = mx_tensor.to_dtype(output, scale, fmt.dtype or fmt.name, BLOCK_SIZE, dtype)
    mine = torch.ops.aten_mx.dequantize_mx.format(output, scale, -1, BLOCK_SIZE, fmt.name, dtype)
    assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def block(*values: float) -> Tensor:
    x = torch.zeros(1, BLOCK_SIZE)
    x[0, : len(values)] = torch.tensor(values)
    return x


E4M3, E2M1 = FORMATS["fp8_e4m3"], FORMATS["fp4_e2m1"]
FLOOR, EVEN = ScaleCalculationMode.FLOOR, ScaleCalculationMode.EVEN


def scale_byte(side: tuple[Tensor, Tensor]) -> int:
    return int(side[1].item())


def test_difference_inf_block() -> None:
    """Inf is a number of the next binade for TorchAO 0.18; here it makes the block NaN."""
    x = block(float("inf"), 1.0, -2.0)
    mine, theirs = ours(x, E4M3, FLOOR), peer(x, E4M3, FLOOR)
    assert (scale_byte(mine), scale_byte(theirs)) == (0xFF, 247)
    assert (mine[0] == 0x7F).all()
    assert theirs[0][0, 1] == 0


@pytest.mark.parametrize(
    ("fmt", "codes"),
    [(E4M3, [0x7F, 0x00, 0x80]), (E2M1, [0x3, 0x8, 0x0])],
    ids=lambda v: str(v)[:40],
)
def test_difference_nan_block_codes(fmt: ElementFormat, codes: list[int]) -> None:
    """Every code of the block is NaN here, or 0 where the format has none and the scale alone
    carries it; TorchAO 0.18 divides by the NaN scale's bits, an Inf, and keeps what comes out."""
    x = block(float("nan"), 1.0, -2.0)
    mine, theirs = ours(x, fmt, EVEN), peer(x, fmt, EVEN)
    assert (scale_byte(mine), scale_byte(theirs)) == (0xFF, 0xFF)
    assert (mine[0] == fmt.nan_code).all()
    assert theirs[0][0, :3].tolist() == codes


@GRID
def test_the_largest_finite_block(
    fmt: ElementFormat, mode: ScaleCalculationMode, dtype: torch.dtype
) -> None:
    """No difference in 0.18; its main branch gives a NaN scale for EVEN there."""
    assert_same(block(torch.finfo(dtype).max).to(dtype), fmt, mode)


def test_difference_scale_byte_0() -> None:
    """Byte 0 is 2^-127 here; TorchAO 0.18 divides by 2^-126, half the code."""
    x = block(2.0**-127)
    mine, theirs = ours(x, E4M3, FLOOR), peer(x, E4M3, FLOOR)
    assert (scale_byte(mine), scale_byte(theirs)) == (0, 0)
    assert mine[0][0, 0] == 0x38  # 1.0
    assert theirs[0][0, 0] == 0x30  # 0.5


def test_scale_byte_0_dequantized() -> None:
    """No difference in reading it back: 1.0 under byte 0 is 2^-127."""
    code = torch.full((1, BLOCK_SIZE), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.zeros(1, 1, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    theirs = mx_tensor.to_dtype(code, scale, torch.float8_e4m3fn, BLOCK_SIZE, torch.float32)
    assert torch.equal(aten_mx.dequantize_mx(code, scale), theirs)
    assert theirs[0, 0].item() == 2.0**-127


def test_difference_error_kinds() -> None:
    """TorchAO asserts; the op raises an error of the right type with the received value."""
    x = torch.zeros(3, 33)
    with pytest.raises(AssertionError):
        peer(x, E4M3, FLOOR)
    with pytest.raises(ValueError, match="size 33 of dim 1 must be a multiple of block_size 32"):
        ours(x, E4M3, FLOOR)
