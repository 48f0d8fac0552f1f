"""Every code of every format under every scale byte, and the identities between the two ops."""

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import BLOCK_SIZE, DTYPES, PAYLOAD_DTYPES, SCALAR_TYPES, to_bits, to_payload, to_tensor
from oracle import CEIL, FORMATS, MODES, Array, decode_float, dequantize_bits
from witness import WITNESS

import aten_mx  # noqa: F401  (registers the ops)

pytestmark = pytest.mark.contract

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx


def every_code(fmt: str) -> tuple[Array, Array, Array]:
    """Payload, codes and scale: row ``s`` holds all 256 bytes under scale byte ``s``."""
    payload = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    codes = payload
    if fmt == "fp4_e2m1":
        codes = np.stack([payload & 0xF, payload >> 4], -1).reshape(256, 512)
    scale = np.arange(256, dtype=np.uint8)[:, None].repeat(codes.shape[-1] // BLOCK_SIZE, 1)
    return payload, codes, scale


def assert_same_bits(actual: Array, expected: Array, codes: Array, scale: Array) -> None:
    """Report the first differences as (scale byte, code): actual, expected."""
    wrong = [
        f"scale {scale[row, column // BLOCK_SIZE]} code {codes[row, column]:#04x}: "
        f"{actual[row, column]:#x}, expected {expected[row, column]:#x}"
        for row, column in np.argwhere(actual != expected)
    ]
    assert not wrong, f"{len(wrong)} differences: {wrong[:20]}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_every_code(fmt: str, dtype: str) -> None:
    payload, codes, scale = every_code(fmt)
    expected = dequantize_bits(codes, scale, BLOCK_SIZE, fmt, dtype)
    scale_tensor = to_tensor(scale, torch.float8_e8m0fnu)

    q = to_tensor(payload, PAYLOAD_DTYPES[fmt])
    output = dequantize_mx.format(q, scale_tensor, -1, BLOCK_SIZE, fmt, DTYPES[dtype])
    assert output.dtype == DTYPES[dtype]
    assert_same_bits(to_bits(output), expected, codes, scale)

    if fmt in SCALAR_TYPES:
        q = to_tensor(payload, SCALAR_TYPES[fmt])
        output = dequantize_mx(q, scale_tensor, -1, BLOCK_SIZE, DTYPES[dtype])
        assert_same_bits(to_bits(output), expected, codes, scale)
    if fmt == "fp4_e2m1":  # specification.md, 4: `.format` takes both payload dtypes
        output = dequantize_mx.format(q, scale_tensor, -1, BLOCK_SIZE, fmt, DTYPES[dtype])
        assert_same_bits(to_bits(output), expected, codes, scale)


@pytest.mark.parametrize("fmt", WITNESS)
def test_dequantize_matches_ml_dtypes(fmt: str) -> None:
    """A second witness that shares nothing with the oracle, for the formats that it has."""
    payload, codes, scale = every_code(fmt)
    q = to_tensor(payload, PAYLOAD_DTYPES[fmt])
    scale_tensor = to_tensor(scale, torch.float8_e8m0fnu)
    output = dequantize_mx.format(q, scale_tensor, -1, BLOCK_SIZE, fmt, torch.float32)

    element = (codes & ((1 << FORMATS[fmt].bits) - 1)).view(WITNESS[fmt]).astype(np.float64)
    factor = scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float64).repeat(BLOCK_SIZE, 1)
    product = element * factor
    expected = np.where(np.abs(product) >= 2.0**128, np.copysign(np.inf, product), product)
    actual = decode_float(to_bits(output), "f32")
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_at_scale_one(fmt: str) -> None:
    """At scale 1 the result is the value itself: the table of specification.md, 2, by its words."""
    payload, codes, scale = every_code(fmt)
    q = to_tensor(payload[:1], PAYLOAD_DTYPES[fmt])
    one = to_tensor(np.full_like(scale[:1], 127), torch.float8_e8m0fnu)
    output = dequantize_mx.format(q, one, -1, BLOCK_SIZE, fmt, torch.float32).cpu().numpy()[0]
    if fmt == "int8":
        np.testing.assert_array_equal(output, codes[0].astype(np.int8) / 64)
        return
    if fmt not in WITNESS:
        pytest.skip("ml_dtypes has no such format; the oracle's values are tested above")
    info = ml_dtypes.finfo(WITNESS[fmt])
    finite = output[np.isfinite(output)]
    assert finite.max() == info.max
    assert finite[finite > 0].min() == info.smallest_subnormal
    assert np.count_nonzero(np.isnan(output)) == {"fp8_e4m3": 2, "fp8_e5m2": 6}.get(fmt, 0)
    assert np.count_nonzero(np.isinf(output)) == {"fp8_e5m2": 2}.get(fmt, 0)


def finite_codes(fmt: str, mode: int) -> Array:
    """Blocks of all finite codes, each with a largest code that leaves the scale where it is.

    The scale of a block is 2^k again if its largest element is the format's maximum, in CEIL the
    largest power of two; larger codes are left out there.
    """
    row = FORMATS[fmt]
    top = row.largest_code
    if mode == CEIL:
        top = int(np.searchsorted(row.magnitudes, 2.0**row.emax))
    magnitude = np.arange(top + 1)
    negative = 256 - magnitude[1:] if fmt == "int8" else magnitude | 1 << (row.bits - 1)
    codes = np.concatenate([magnitude, negative])
    codes = np.resize(codes, (-(-len(codes) // (BLOCK_SIZE - 1)), BLOCK_SIZE - 1))
    return np.insert(codes, 7, top, axis=1).astype(np.uint8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_code_to_value_to_code(fmt: str, mode: str) -> None:
    """Quantizing what a block means gives the block again, from scale byte 0 to the top."""
    codes = finite_codes(fmt, MODES[mode])
    payload = to_payload(codes, fmt)
    q = to_tensor(payload, PAYLOAD_DTYPES[fmt])
    for scale_byte in (0, 1, 2, 126, 127, 128, 254 - FORMATS[fmt].emax):
        scale_bytes = np.full((len(codes), 1), scale_byte, np.uint8)
        scale = to_tensor(scale_bytes, torch.float8_e8m0fnu)
        value = dequantize_mx.format(q, scale, -1, BLOCK_SIZE, fmt, torch.float32)
        again, again_scale = quantize_mx.format(value, -1, BLOCK_SIZE, fmt, MODES[mode])
        np.testing.assert_array_equal(to_bits(again_scale), scale_bytes)
        np.testing.assert_array_equal(to_bits(again), payload)
        back = dequantize_mx.format(again, again_scale, -1, BLOCK_SIZE, fmt, torch.float32)
        np.testing.assert_array_equal(to_bits(back), to_bits(value))
