"""TorchAO's ``to_mx`` and ``to_dtype`` as peers: the same bytes wherever SPEC isn't different.

Each difference (TorchAO 0.18) is a ``test_difference_*`` that pins the bytes of both sides and
gives the reason. The parity tests leave out exactly the blocks that these reasons name, by
predicates that state the rule on the input (``same_scale``, ``same_payload``), never by what came
out.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from cases import SCALAR_TYPES
from reference import CEIL, E8M0_BIAS, E8M0_NAN, EVEN, FLOOR, FORMATS, MODES, RCEIL, shared_exponent
from torch import Tensor

# Importing TorchAO logs that optional extensions fail to load, but warns of nothing: no filter.
from torchao.prototype.mx_formats import config, mx_tensor

import aten_mx  # noqa: F401  (registers the ops)

BLOCK_SIZE = 32
PEER_FORMATS = [fmt for fmt in FORMATS if fmt != "int8"]  # test_difference_no_int8
INPUT_DTYPES = [torch.float32, torch.bfloat16]  # test_difference_no_float16_input
INT_VIEWS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
QUANTIZE = torch.ops.aten_mx.quantize_mx.format
DEQUANTIZE = torch.ops.aten_mx.dequantize_mx.format
NAN = float("nan")
INF = float("inf")

each_format = pytest.mark.parametrize("fmt", PEER_FORMATS)
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
each_input_dtype = pytest.mark.parametrize("dtype", INPUT_DTYPES, ids=lambda d: str(d)[6:])


# --- the two sides, as bytes in our order (e8m0 and float4 lack comparisons) ----------------------


def theirs(
    x: Tensor, fmt: str, mode: int, swizzled: bool = False, block_size: int = BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of ``to_mx``, which returns the scale first."""
    scaling_mode = config.ScaleCalculationMode(list(MODES)[mode])
    element = SCALAR_TYPES.get(fmt, fmt)  # it spells the FP6 formats as strings, and as we do
    scale, output = mx_tensor.to_mx(x, element, block_size, scaling_mode, swizzled)
    assert scale.dtype is torch.float8_e8m0fnu
    return output.view(torch.uint8), scale.view(torch.uint8)


def ours(
    x: Tensor, fmt: str, mode: int, swizzled: bool = False, block_size: int = BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of the op."""
    output, scale = QUANTIZE(x, -1, block_size, fmt, mode, swizzle_type=int(swizzled))
    return output.view(torch.uint8), scale.view(torch.uint8)


def dequantized(payload: Tensor, scale: Tensor, fmt: str, dtype: torch.dtype) -> list[Tensor]:
    """The op's and TorchAO's result for the same bytes."""
    if fmt.startswith("fp8"):
        payload = payload.view(SCALAR_TYPES[fmt])
    scale = scale.view(torch.float8_e8m0fnu)
    element = SCALAR_TYPES.get(fmt, fmt)
    return [
        DEQUANTIZE(payload, scale, -1, BLOCK_SIZE, fmt, dtype),
        mx_tensor.to_dtype(payload, scale, element, BLOCK_SIZE, dtype),
    ]


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
    """Of each block whether SPEC's scale byte is TorchAO's too."""
    amax = x.double().abs().amax(-1)
    same = ~amax.isinf()  # test_difference_inf_block; a NaN block's is 0xFF for both
    if mode == RCEIL:
        one = torch.ones(())  # keeps zero, NaN and Inf out of the logarithm
        ordinary = amax.isfinite() & (amax > 0)
        rounded = quotient_rounds_to_a_power_of_two(torch.where(ordinary, amax, one), fmt)
        same &= ~(ordinary & rounded)
    return same


def same_payload(x: Tensor, fmt: str, mode: int) -> Tensor:
    """Of each block whether SPEC's codes are TorchAO's too."""
    amax = x.double().abs().amax(-1)
    finite_amax = torch.where(amax.isfinite() & (amax > 0), amax, torch.ones(())).numpy()
    exponent = torch.from_numpy(shared_exponent(finite_amax, FORMATS[fmt], mode))
    byte_0 = (amax > 0) & (exponent <= -E8M0_BIAS)  # test_difference_scale_byte_0
    return same_scale(x, fmt, mode) & ~amax.isnan() & ~byte_0  # test_difference_nan_block


def assert_parity(x: Tensor, fmt: str, mode: int) -> None:
    """The same bytes for ``x``, a block a row, apart from the named differences."""
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


@cache
def random_blocks() -> Tensor:
    """Normal values: plain, at magnitudes over float32's range, and with a large spread inside."""
    generator = torch.Generator().manual_seed(86)
    normal = torch.randn(1024, BLOCK_SIZE, generator=generator)
    magnitude = torch.randint(-110, 124, (1024, 1), generator=generator)
    spread = torch.randint(-40, 1, normal.shape, generator=generator)
    return torch.cat(
        (
            normal,
            torch.ldexp(normal, magnitude),
            torch.ldexp(normal, spread),
            torch.ldexp(normal, magnitude + spread),  # down to subnormals and zeros
        )
    )


@cache
def bfloat16_maxima() -> Tensor:
    """Every bfloat16 magnitude, NaN and Inf too, as block maximum of either sign."""
    largest = torch.arange(1 << 15, dtype=torch.int16).view(torch.bfloat16).float()
    return largest.unsqueeze(1) * torch.linspace(-1, 1, BLOCK_SIZE)


@cache
def float32_thresholds() -> Tensor:
    """Maxima at which some mode raises the exponent, and their neighbours, in every binade."""
    significands = {1.0} | {fmt.max_normal / 2.0**fmt.emax for fmt in FORMATS.values()}
    significands |= {2 - 2.0 ** -(fmt.mantissa_bits + 1) for fmt in FORMATS.values()}
    bits = torch.tensor(sorted(significands)).view(torch.int32).unsqueeze(1)
    bits = (bits + torch.arange(-3, 4, dtype=torch.int32)).flatten()
    binades = torch.arange(-126, 127, dtype=torch.int32).unsqueeze(1) << 23
    largest = (bits + binades).clamp(1, 0x7F7FFFFF).view(torch.float32).flatten()
    return largest.unsqueeze(1) * torch.linspace(1, -1, BLOCK_SIZE)


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


def test_difference_swizzle_of_leading_dims() -> None:
    """TorchAO tiles the rows of all leading indices as one matrix, which fits no shape unless
    they are multiples of 128; each leading index is padded on its own here."""
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(3))
    with pytest.raises(RuntimeError, match="shape"):
        theirs(x, "fp8_e4m3", FLOOR, True)
    _, scale = ours(x, "fp8_e4m3", FLOOR, True)
    assert scale.shape == (2, 32, 16)
    for index in range(2):
        assert torch.equal(scale[index], theirs(x[index], "fp8_e4m3", FLOOR, True)[1])


# --- differences in quantization ------------------------------------------------------------------


def block(*values: float) -> Tensor:
    """One block; the rest is zero."""
    x = torch.zeros(1, BLOCK_SIZE)
    x[0, : len(values)] = torch.tensor(values)
    return x


def first_bytes(side: tuple[Tensor, Tensor], count: int) -> tuple[int, list[int]]:
    """Scale byte and the first payload bytes of one block."""
    return int(side[1].item()), side[0][0, :count].tolist()


@pytest.mark.parametrize(
    ("fmt", "scale", "codes", "rceil_codes"),
    [  # codes of Inf, 2^127 and -1; the scale byte is 128 - emax + 127
        ("fp8_e4m3", 247, [0x7E, 0x70, 0x80], [0x7E, 0x38, 0x80]),
        ("fp8_e5m2", 240, [0x7B, 0x74, 0x80], [0x7B, 0x3C, 0x80]),
        ("fp6_e2m3", 253, [0x1F, 0x10, 0x20], [0x1F, 0x08, 0x20]),
        ("fp6_e3m2", 251, [0x1F, 0x18, 0x20], [0x1F, 0x0C, 0x20]),
        ("fp4_e2m1", 253, [0x47, 0x08], [0x27, 0x08]),  # two codes a byte
    ],
)
@each_mode
def test_difference_inf_block(
    fmt: str, scale: int, codes: list[int], rceil_codes: list[int], mode: int
) -> None:
    """Inf makes the block NaN here, as SPEC section 3 step 2 and TorchAO's main branch have it.

    0.18 takes it for 2^128: scale byte of that binade (RCEIL: 254, as the instruction saturates)
    and finite codes, Inf itself saturated. The block reads back as large ordinary numbers.
    """
    x = block(INF, 2.0**127, -1.0)
    nan_code = FORMATS[fmt].nan_code
    assert first_bytes(ours(x, fmt, mode), len(codes)) == (E8M0_NAN, [nan_code] * len(codes))
    assert (ours(x, fmt, mode)[0] == nan_code).all()
    expected = (254, rceil_codes) if mode == RCEIL else (scale, codes)
    assert first_bytes(theirs(x, fmt, mode), len(codes)) == expected


@pytest.mark.parametrize(
    ("fmt", "codes", "rceil_codes"),
    [  # codes of NaN, 1 and -2
        ("fp8_e4m3", [0x7F, 0x00, 0x80], [0x7F, 0x7F, 0x7F]),
        ("fp8_e5m2", [0x7F, 0x00, 0x80], [0x7F, 0x7F, 0x7F]),
        ("fp6_e2m3", [0x0C, 0x00, 0x20], [0x0C, 0x0C, 0x0C]),
        ("fp6_e3m2", [0x0E, 0x00, 0x20], [0x0E, 0x0E, 0x0E]),
        ("fp4_e2m1", [0x03, 0x08], [0x33, 0x33]),
    ],
)
@each_mode
def test_difference_nan_block(
    fmt: str, codes: list[int], rceil_codes: list[int], mode: int
) -> None:
    """The scale byte is 0xFF for both. Every code is NaN here, or 0 where the format has none.

    TorchAO divides by the scale's bits read as float32, an Inf, so only NaN elements are NaN codes;
    in RCEIL it multiplies by a NaN, so all are: with FP8 the one case in which the codes agree. Its
    FP6 and FP4 conversion has no NaN: what comes out are leftovers of the NaN's exponent bits.
    """
    x = block(NAN, 1.0, -2.0)
    nan_code = FORMATS[fmt].nan_code
    assert first_bytes(ours(x, fmt, mode), len(codes)) == (E8M0_NAN, [nan_code] * len(codes))
    assert (ours(x, fmt, mode)[0] == nan_code).all()
    peer_codes = rceil_codes if mode == RCEIL else codes
    assert first_bytes(theirs(x, fmt, mode), len(codes)) == (E8M0_NAN, peer_codes)


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "fp8_e5m2"])
def test_difference_negative_nan(fmt: str) -> None:
    """A NaN block is 0x7F throughout here; TorchAO keeps the NaN's sign."""
    x = block(-NAN)
    assert first_bytes(ours(x, fmt, FLOOR), 1) == (E8M0_NAN, [0x7F])
    assert first_bytes(theirs(x, fmt, FLOOR), 1) == (E8M0_NAN, [0xFF])


@pytest.mark.parametrize(
    ("fmt", "codes", "halved", "unscaled"),
    [  # codes of 2^-127 and -2^-128: 1 and -0.5 under scale byte 0
        ("fp8_e4m3", [0x38, 0xB0], [0x30, 0xA8], [0x00, 0x80]),
        ("fp8_e5m2", [0x3C, 0xB8], [0x38, 0xB4], [0x00, 0x80]),
        ("fp6_e2m3", [0x08, 0x24], [0x04, 0x22], [0x00, 0x20]),
        ("fp6_e3m2", [0x0C, 0x28], [0x08, 0x24], [0x00, 0x20]),
        ("fp4_e2m1", [0x92], [0x81], [0x80]),  # -0.25 is a tie, and rounds to -0
    ],
)
@each_mode
def test_difference_scale_byte_0(
    fmt: str, codes: list[int], halved: list[int], unscaled: list[int], mode: int
) -> None:
    """Byte 0 is 2^-127 here and when TorchAO reads it back; its main branch agrees.

    0.18 divides by 2^-126 instead, the least normal float32, so the values come back halved; in
    RCEIL it multiplies by 1, so they all come back as zero.
    """
    x = block(2.0**-127, -(2.0**-128))
    assert first_bytes(ours(x, fmt, mode), len(codes)) == (0, codes)
    peer_codes = unscaled if mode == RCEIL else halved
    assert first_bytes(theirs(x, fmt, mode), len(codes)) == (0, peer_codes)


@pytest.mark.parametrize(
    ("fmt", "code", "saturated"),
    [
        ("fp8_e4m3", 0x76, 0x7E),
        ("fp8_e5m2", 0x77, 0x7B),
        ("fp6_e2m3", 0x17, 0x1F),
        ("fp6_e3m2", 0x1B, 0x1F),
        ("fp4_e2m1", 0x05, 0x07),
    ],
)
def test_difference_rceil_takes_the_logarithm_in_float32(
    fmt: str, code: int, saturated: int
) -> None:
    """RCEIL is the least X with amax <= max_normal * 2^X, in integers here.

    TorchAO rounds ``log2(amax / max_normal)`` to float32 before it rounds up: a quotient of
    2^20 * (1 + 2^-23) has the logarithm 20, one less, and the element saturates. The instruction
    that it stands in for rounds the quotient itself up.
    """
    x = block(FORMATS[fmt].max_normal * 2.0**20 * (1 + 2.0**-23))
    assert first_bytes(ours(x, fmt, RCEIL), 1) == (148, [code])
    assert first_bytes(theirs(x, fmt, RCEIL), 1) == (147, [saturated])


@pytest.mark.parametrize(
    ("fmt", "scale", "code"),
    [
        ("fp8_e4m3", 247, 0x78),  # 256
        ("fp8_e5m2", 240, 0x78),  # 32768
        ("fp6_e2m3", 253, 0x18),  # 4
        ("fp6_e3m2", 251, 0x1C),  # 16
        ("fp4_e2m1", 253, 0x06),  # 4
    ],
)
@pytest.mark.parametrize("mode", [EVEN, CEIL], ids=["even", "ceil"])
def test_no_difference_at_the_largest_float32(fmt: str, scale: int, code: int, mode: int) -> None:
    """The carry to 2^128 gives a finite scale, in 0.18 too; its main branch gives 0xFF for EVEN."""
    x = block(torch.finfo(torch.float32).max)
    assert first_bytes(ours(x, fmt, mode), 1) == (scale, [code])
    assert first_bytes(theirs(x, fmt, mode), 1) == (scale, [code])


# --- differences in what is accepted --------------------------------------------------------------


def test_difference_no_int8() -> None:
    """TorchAO has no MX INT8."""
    with pytest.raises(AssertionError, match="unsupported"):
        theirs(block(1.0), "int8", FLOOR)
    assert first_bytes(ours(block(1.0), "int8", FLOOR), 1) == (127, [64])


def test_difference_no_float16_input() -> None:
    """float16 is read as float32 here; TorchAO refuses it."""
    x = block(1.0, -3.0).half()
    with pytest.raises(AssertionError, match=r"torch\.float16 is not supported yet"):
        theirs(x, "fp8_e4m3", FLOOR)
    for mine, peer in zip(
        ours(x, "fp8_e4m3", FLOOR), theirs(x.float(), "fp8_e4m3", FLOOR), strict=True
    ):
        assert torch.equal(mine, peer)


def test_difference_strides() -> None:
    """Any strides here; TorchAO refuses what isn't contiguous."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(4)).t()
    with pytest.raises(AssertionError, match="unsupported"):
        theirs(x, "fp8_e4m3", FLOOR)
    for mine, peer in zip(
        ours(x, "fp8_e4m3", FLOOR), theirs(x.contiguous(), "fp8_e4m3", FLOOR), strict=True
    ):
        assert torch.equal(mine, peer)


def test_difference_error_kinds() -> None:
    """TorchAO asserts; the op raises an error of the right type with the received value."""
    x = torch.zeros(3, 33)
    with pytest.raises(AssertionError, match="must be divisible by block_size 32"):
        theirs(x, "fp8_e4m3", FLOOR)
    with pytest.raises(ValueError, match="size 33 of dim 1 must be a multiple of block_size 32"):
        ours(x, "fp8_e4m3", FLOOR)


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


def test_difference_dequantized_nan() -> None:
    """Every NaN is the positive quiet one here; TorchAO passes the sign of a NaN code on."""
    payload = torch.full((1, BLOCK_SIZE), 0xFF, dtype=torch.uint8)
    scale = torch.tensor([[E8M0_BIAS]], dtype=torch.uint8)
    mine, peer = dequantized(payload, scale, "fp8_e4m3", torch.float32)
    assert mine.view(torch.int32)[0, 0].item() == 0x7FC00000
    assert peer.view(torch.int32)[0, 0].item() == 0xFFF00000 - (1 << 32)


def test_difference_dequantize_fp6_high_bits() -> None:
    """Bits 6 and 7 of an FP6 byte are ignored here; TorchAO adds them to the exponent field."""
    payload = torch.full((1, BLOCK_SIZE), 0xC8, dtype=torch.uint8)  # 0x08 is 1.0 in E2M3
    scale = torch.tensor([[E8M0_BIAS]], dtype=torch.uint8)
    mine, peer = dequantized(payload, scale, "fp6_e2m3", torch.float32)
    assert mine[0, 0].item() == 1.0
    assert peer[0, 0].item() == 2.0**24


def test_difference_dequantize_to_float16() -> None:
    """The product is float32 and rounded once here; TorchAO rounds the scale to float16 first.

    2^-9 under 2^17 is 2^8, but 2^17 is Inf in float16; 256 under 2^-25 is 2^-17, but 2^-25 is 0.
    """
    payload = torch.tensor([[0x01], [0x78]], dtype=torch.uint8).expand(2, BLOCK_SIZE).contiguous()
    scale = torch.tensor([[E8M0_BIAS + 17], [E8M0_BIAS - 25]], dtype=torch.uint8)
    mine, peer = dequantized(payload, scale, "fp8_e4m3", torch.float16)
    assert mine[:, 0].tolist() == [2.0**8, 2.0**-17]
    assert peer[:, 0].tolist() == [INF, 0.0]
