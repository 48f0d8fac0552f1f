"""Where TorchAO 0.18 and the ops differ: each test pins the bytes of both and gives the reason."""

from __future__ import annotations

import pytest
import torch
from oracle import CEIL, E8M0_BIAS, E8M0_NAN, EVEN, FLOOR, FORMATS, RCEIL
from torch import Tensor
from torchao_peer import BLOCK_SIZE, dequantized, each_mode, ours, theirs

NAN = float("nan")
INF = float("inf")


def block(*values: float) -> Tensor:
    """One block; the rest is zero."""
    x = torch.zeros(1, BLOCK_SIZE)
    x[0, : len(values)] = torch.tensor(values)
    return x


def first_bytes(side: tuple[Tensor, Tensor], count: int) -> tuple[int, list[int]]:
    """Scale byte and the first payload bytes of one block."""
    return int(side[1].item()), side[0][0, :count].tolist()


# --- quantization ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "scale", "codes", "rceil_codes"),
    [  # codes of Inf, 2^127 and -1; the scale byte is 128 - emax + 127
        ("fp8_e4m3", 247, [0x7E, 0x70, 0x80], [0x7E, 0x38, 0x80]),
        ("fp8_e5m2", 240, [0x7B, 0x74, 0x80], [0x7B, 0x3C, 0x80]),
        ("fp6_e2m3", 253, [0x1F, 0x10, 0x20], [0x1F, 0x08, 0x20]),
        ("fp6_e3m2", 251, [0x1F, 0x18, 0x20], [0x1F, 0x0C, 0x20]),
        ("fp4_e2m1", 253, [0x47, 0x08], [0x27, 0x08]),  # two codes per byte
    ],
)
@each_mode
def test_difference_inf_block(
    fmt: str, scale: int, codes: list[int], rceil_codes: list[int], mode: int
) -> None:
    """Inf makes the block NaN here, as specification.md, 3.2 and TorchAO's main branch have it.

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


# --- what is accepted -----------------------------------------------------------------------------


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
