"""The ops against the oracle: every 16-bit pattern, every float32 exponent, random blocks.

All bytes are compared. Layout, threads and swizzled scales are in ``test_emulated_layout.py``.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
import torch
from cases import (
    BLOCK_SIZE,
    DTYPES,
    PAYLOAD_DTYPES,
    SCALAR_TYPES,
    to_bits,
    to_payload,
    to_tensor,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS, FORMATS, MODES, Array, decode_float, dequantize_bits, quantize_values
from under_test import cpu_alone

import aten_mx  # noqa: F401  (registers the ops)
from aten_mx.testing.graph_checks import flushed_subnormals

pytestmark = pytest.mark.contract

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx

SIXTEEN_BIT = ["bf16", "f16"]


# --- inputs ---------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def ladder(dtype: str) -> Array:
    """Every pattern as the largest of a block, and 1 to 31 binades below another one.

    Row p holds pattern p at a place that varies; the element k places on has the same significand k
    binades lower. So each finite pattern is met under maxima of every distance, with both signs.
    Below the exponents, what is left of the significand goes on as subnormals.
    """
    mantissa_bits = FLOATS[dtype].mantissa_bits
    pattern = np.arange(1 << 16)[:, None]
    magnitude, sign = pattern & 0x7FFF, pattern >> 15
    place = (pattern + (pattern >> 5)) % BLOCK_SIZE
    k = (np.arange(BLOCK_SIZE) - place) % BLOCK_SIZE
    lower = magnitude - (k << mantissa_bits)
    fraction = magnitude & ((1 << mantissa_bits) - 1)
    lower = np.where(lower < 0, fraction >> k % (mantissa_bits + 1), lower)
    return (lower | (sign ^ (k >> 1 & 1)) << 15).astype(np.uint16)


@lru_cache(maxsize=1)
def boundaries() -> Array:
    """Every float32 exponent with the significands where a rule or a rounding changes, -+ one ulp.

    They are the ties of each format's mantissa bits (of many bits a few), the EVEN thresholds among
    them, and the significands of the formats' maxima, where RCEIL changes.
    """
    one = 1 << 23
    ties = []
    for m in sorted({fmt.mantissa_bits for fmt in FORMATS.values()}):
        odd = range(1, 2 << m, 2)
        middle = len(odd) // 2
        few = odd if m <= 3 else (*odd[:2], *odd[middle - 1 : middle + 1], *odd[-2:])
        ties += [number * one >> (m + 1) for number in few]
    significands = {fmt.max_normal / 2.0**fmt.emax for fmt in FORMATS.values()}
    maxima = [int((significand - 1) * one) for significand in significands]
    fractions = np.array(
        sorted({(f + step) % one for f in (0, *ties, *maxima) for step in (-1, 0, 1)})
    )

    exponent, index = (grid.reshape(-1, 1) for grid in np.indices((256, len(fractions))))
    k = (np.arange(BLOCK_SIZE) - index) % BLOCK_SIZE
    lower = np.maximum(exponent - k, 0) << 23 | fractions[(index + 5 * k) % len(fractions)]
    magnitude = np.minimum(lower, exponent << 23 | fractions[index])
    return (magnitude | ((exponent + index) ^ (k >> 1)) % 2 << 31).astype(np.uint32)


@lru_cache(maxsize=3)
def values_of(dtype: str) -> Array:
    """The blocks of a dtype as float64, decoded once for all formats and modes."""
    return decode_float(blocks_of(dtype), dtype)


def blocks_of(dtype: str) -> Array:
    """The exhaustive blocks of a dtype."""
    return boundaries() if dtype == "f32" else ladder(dtype)


def assert_same_blocks(
    bits: Array, actual: tuple[Array, Array], expected: tuple[Array, Array]
) -> None:
    """Payload and scale bytes equal; otherwise the first blocks that differ, with their input."""
    wrong_rows = np.flatnonzero(
        (actual[0] != expected[0]).any(-1) | (actual[1] != expected[1]).any(-1)
    )
    if not len(wrong_rows):
        return
    lines = [f"{len(wrong_rows)} of {len(bits)} blocks differ"]
    for row in wrong_rows[:5]:
        lines.append("input " + " ".join(f"{bit:0{2 * bits.itemsize}x}" for bit in bits[row]))
        for name, pair in (("got", actual), ("expected", expected)):
            scale, payload = pair[1][row].tobytes().hex(), pair[0][row].tobytes().hex(" ")
            lines.append(f"  {name}: scale {scale} payload {payload}")
    pytest.fail("\n".join(lines))


# --- quantize -------------------------------------------------------------------------------------


def check_blocks(bits: Array, value: Array, fmt: str, mode: str, dtype: str) -> None:
    """Quantize blocks of 32, one per row, and compare with the oracle."""
    codes, scale = quantize_values(value, BLOCK_SIZE, fmt, MODES[mode])
    x = to_tensor(bits, DTYPES[dtype])
    output, output_scale = quantize_mx.format(x, -1, BLOCK_SIZE, fmt, MODES[mode])
    assert_same_blocks(
        bits, (to_bits(output), to_bits(output_scale)), (to_payload(codes, fmt), scale)
    )


@pytest.mark.proves("under test", "quantize_mx")
@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_every_16_bit_pattern(fmt: str, mode: str, dtype: str) -> None:
    check_blocks(blocks_of(dtype), values_of(dtype), fmt, mode, dtype)


@pytest.mark.proves("under test", "quantize_mx")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_every_float32_exponent(fmt: str, mode: str) -> None:
    check_blocks(blocks_of("f32"), values_of("f32"), fmt, mode, "f32")


OF_THE_CPU = cpu_alone("flushing subnormals is a setting of the CPU's threads")


@pytest.fixture
def flush_denormal() -> Iterator[None]:
    """float32 arithmetic of this thread flushes subnormals, as some processes run."""
    with flushed_subnormals() as can_flush:
        assert can_flush, "the test needs a processor that can flush subnormals"
        smallest = torch.tensor([1], dtype=torch.int32).view(torch.float32)
        assert (smallest * 1.0).view(torch.int32).item() == 0
        yield


def test_ladder_covers_every_pattern() -> None:
    """The sweep is what it claims: each pattern is once largest, each finite one once is not."""
    for dtype in SIXTEEN_BIT:
        bits = ladder(dtype)
        magnitude = bits & 0x7FFF
        largest = magnitude.argmax(-1)
        assert len(np.unique(bits[np.arange(len(bits)), largest])) == 1 << 16
        others = np.unique(bits[magnitude < magnitude.max(-1, keepdims=True)])
        top_binade = 1 << FLOATS[dtype].mantissa_bits
        assert len(others) >= 2 * (FLOATS[dtype].infinity - top_binade)


@pytest.mark.proves("under test", "quantize_mx")
@OF_THE_CPU
@pytest.mark.usefixtures("flush_denormal")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_flushing_subnormals(fmt: str, mode: str, dtype: str) -> None:
    """The same bytes: every block whose largest element is below 2^-100, or float16's 2^-13."""
    bits, value = blocks_of(dtype), values_of(dtype)
    small = np.abs(value).max(-1) < (2.0**-13 if dtype == "f16" else 2.0**-100)
    check_blocks(bits[small], value[small], fmt, mode, dtype)


# --- dequantize -----------------------------------------------------------------------------------


@pytest.mark.proves("under test", "dequantize_mx")
@OF_THE_CPU
@pytest.mark.usefixtures("flush_denormal")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_flushing_subnormals(fmt: str, dtype: str) -> None:
    """The same bits: every byte as payload under the scale bytes whose results are subnormal."""
    payload = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    codes = payload
    if fmt == "fp4_e2m1":
        codes = np.stack([payload & 0xF, payload >> 4], -1).reshape(256, 512)
    scale = np.arange(256, dtype=np.uint8)[:, None].repeat(codes.shape[-1] // BLOCK_SIZE, 1)
    output = dequantize_mx.format(
        to_tensor(payload, PAYLOAD_DTYPES[fmt]),
        to_tensor(scale, torch.float8_e8m0fnu),
        -1,
        BLOCK_SIZE,
        fmt,
        DTYPES[dtype],
    )
    expected = dequantize_bits(codes, scale, BLOCK_SIZE, fmt, dtype)
    np.testing.assert_array_equal(to_bits(output), expected)


# --- random blocks --------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn, fmt: str) -> tuple[tuple[int, ...], int, int]:
    """Shape, blocked dimension and block size; FP4 packs pairs, so its blocks are even."""
    block_size = draw(st.sampled_from([1, 2, 3, 16, 31, 32, 48, 64]))
    block_size += fmt == "fp4_e2m1" and block_size % 2
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    shape[dim] *= block_size
    return tuple(shape), dim, block_size


@st.composite
def random_bits(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """Any bits, or bits whose exponents lie close together: else one element dwarfs the rest."""
    layout = FLOATS[dtype]
    size = np.prod(shape).item() * np.dtype(layout.storage).itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    bits = np.frombuffer(data, layout.storage).astype(np.int64).reshape(shape)
    if draw(st.booleans()):
        one = 1 << layout.mantissa_bits
        lowest = draw(st.integers(0, layout.infinity // one - 6))
        bits = bits & ~layout.infinity | ((bits & layout.infinity) // one % 6 + lowest) * one
    return bits.astype(layout.storage)


@pytest.mark.proves("under test")
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_random_blocks(fmt: str, data: st.DataObject) -> None:
    """Any block size, rank, dimension and dtype; and any payload and scale back."""
    dtype, mode = data.draw(st.sampled_from(list(DTYPES))), data.draw(st.sampled_from(list(MODES)))
    shape, dim, block_size = data.draw(shapes(fmt))
    bits = data.draw(random_bits(shape, dtype))
    codes, scale = quantize_values(
        decode_float(bits, dtype), block_size, fmt, MODES[mode], axis=dim
    )
    x = to_tensor(bits, DTYPES[dtype])
    output, output_scale = quantize_mx.format(x, dim, block_size, fmt, MODES[mode])
    np.testing.assert_array_equal(to_bits(output_scale), scale)
    np.testing.assert_array_equal(to_bits(output), to_payload(codes, fmt, dim))
    if fmt in SCALAR_TYPES:
        output, output_scale = quantize_mx(x, dim, block_size, SCALAR_TYPES[fmt], MODES[mode])
        np.testing.assert_array_equal(to_bits(output_scale), scale)
        np.testing.assert_array_equal(to_bits(output), to_payload(codes, fmt, dim))

    codes = np.frombuffer(data.draw(st.binary(min_size=codes.size, max_size=codes.size)), np.uint8)
    codes = codes.reshape(shape) & (0xF if fmt == "fp4_e2m1" else 0xFF)
    scale_bytes = data.draw(st.binary(min_size=scale.size, max_size=scale.size))
    scale = np.frombuffer(scale_bytes, np.uint8).reshape(scale.shape)
    y = dequantize_mx.format(
        to_tensor(to_payload(codes, fmt, dim), PAYLOAD_DTYPES[fmt]),
        to_tensor(scale, torch.float8_e8m0fnu),
        dim,
        block_size,
        fmt,
        DTYPES[dtype],
    )
    expected = dequantize_bits(codes, scale, block_size, fmt, dtype, axis=dim)
    np.testing.assert_array_equal(to_bits(y), expected)
