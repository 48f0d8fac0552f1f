"""The oracle can fail too: checks against ml_dtypes, numpy's casts and the hand-worked rows."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from cases import SCALAR_TYPES, DequantizeCase, QuantizeCase
from cases_all import QUANTIZE_CASES
from cases_dequantize import DEQUANTIZE_CASES
from oracle import (
    CEIL,
    EVEN,
    FLOATS,
    FLOOR,
    FORMATS,
    MODES,
    RCEIL,
    Array,
    decode_float,
    dequantize_bits,
    encode_float,
    pack_nibbles,
    quantize_values,
    shared_exponent,
    swizzle_scale,
)
from witness import WITNESS

from aten_mx import ScaleCalculationMode, formats

# specification.md, 2: bits, emax, max normal, min normal, min subnormal.
TABLE = {
    "fp8_e4m3": (8, 8, 448.0, 2.0**-6, 2.0**-9),
    "fp8_e5m2": (8, 15, 57344.0, 2.0**-14, 2.0**-16),
    "fp6_e2m3": (6, 2, 7.5, 1.0, 0.125),
    "fp6_e3m2": (6, 4, 28.0, 0.25, 0.0625),
    "fp4_e2m1": (4, 2, 6.0, 1.0, 0.5),
    "int8": (8, 0, 127 / 64, None, 1 / 64),
}


def all_bits(dtype: str) -> Array:
    """Every pattern of a 16-bit dtype; for float32 those as upper halves, with some lower."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    if dtype != "f32":
        return bits
    lower = np.array([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return ((bits.astype(np.uint32) << 16)[:, None] | lower).ravel()


@pytest.mark.parametrize("fmt", FORMATS)
def test_format_table(fmt: str) -> None:
    row = FORMATS[fmt]
    min_normal = row.magnitudes[1 << row.mantissa_bits] if row.exponent_bits else None
    assert TABLE[fmt] == (row.bits, row.emax, row.max_normal, min_normal, row.magnitudes[1])


@pytest.mark.parametrize("fmt", WITNESS)
def test_values_match_ml_dtypes(fmt: str) -> None:
    codes = np.arange(1 << FORMATS[fmt].bits, dtype=np.uint8)
    expected = codes.view(WITNESS[fmt]).astype(np.float64)
    np.testing.assert_array_equal(FORMATS[fmt].values[codes], expected)
    np.testing.assert_array_equal(np.signbit(FORMATS[fmt].values[codes]), np.signbit(expected))


@pytest.mark.parametrize("fmt", WITNESS)
def test_nearest_matches_ml_dtypes(fmt: str) -> None:
    """On every bfloat16 and its float32 neighbours; clamped, since E4M3 overflows to NaN there."""
    value = decode_float(all_bits("f32"), "f32")
    value = value[np.isfinite(value)]
    value = np.concatenate([value, np.ldexp(value, -100)])
    value = value[np.float32(value) == value]
    limit = FORMATS[fmt].max_normal
    expected = np.clip(value, -limit, limit).astype(np.float32).astype(WITNESS[fmt])
    np.testing.assert_array_equal(FORMATS[fmt].nearest(value), expected.view(np.uint8))


def test_nearest_int8() -> None:
    """All half steps: numpy rounds halves to even as well."""
    value = np.arange(-300, 301) / 128
    expected = np.clip(np.rint(value * 64), -127, 127).astype(np.int8)
    np.testing.assert_array_equal(FORMATS["int8"].nearest(value).view(np.int8), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_match_numpy(dtype: str) -> None:
    """Decoding every pattern, and encoding values between two patterns and beyond the largest."""
    witness = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[dtype]
    bits = all_bits(dtype)
    value = decode_float(bits, dtype)
    is_nan = np.isnan(value)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected_is_nan = np.isnan(bits.view(witness))
    np.testing.assert_array_equal(is_nan, expected_is_nan)
    np.testing.assert_array_equal(value[~is_nan], bits[~is_nan].view(witness).astype(np.float64))

    wide = decode_float(all_bits("f32"), "f32")  # float32 sources: ml_dtypes rounds them once
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = wide.astype(np.float32).astype(witness).view(FLOATS[dtype].storage)
    expected = np.where(np.isnan(wide), FLOATS[dtype].quiet_nan, expected)
    np.testing.assert_array_equal(encode_float(wide, dtype), expected)


def test_encode_float32_ties() -> None:
    """Products of the op are exact in float32, other float64 values are not: round them once."""
    value = np.array([1 + 2.0**-24, 1 + 3 * 2.0**-24, 2.0**-150, 3 * 2.0**-150, 2.0**128, -0.0])
    expected = [0x3F800000, 0x3F800002, 0x00000000, 0x00000002, 0x7F800000, 0x80000000]
    np.testing.assert_array_equal(encode_float(value, "f32"), np.array(expected, np.uint32))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_shared_exponent_by_definition(fmt: str, mode: str) -> None:
    """In rationals: the powers of two or the maxima that bracket ``amax``."""
    row = FORMATS[fmt]
    significands = {1 + Fraction(n, 256) for n in range(256)}
    ulp = Fraction(1, 1 << 23)
    significands |= {
        s + sign * ulp for s in significands for sign in (-1, 1) if s + sign * ulp >= 1
    }
    amax = [s * Fraction(2) ** e for s in sorted(significands) for e in (-149, -126, -3, 0, 100)]
    exponents = shared_exponent(np.array([float(a) for a in amax]), row, MODES[mode])
    maximum = Fraction(row.max_normal)
    two = Fraction(2)
    for a, x in zip(amax, exponents.tolist(), strict=True):
        power = two ** (x + row.emax)
        if MODES[mode] == FLOOR:
            assert power <= a < 2 * power
        elif MODES[mode] == CEIL:
            assert power / 2 < a <= power
        elif MODES[mode] == EVEN:
            half_step = power / 2 ** (row.mantissa_bits + 1)
            assert power - half_step / 2 <= a < 2 * power - half_step
        elif MODES[mode] == RCEIL:
            assert maximum * two ** (x - 1) < a <= maximum * two**x
        else:
            pytest.fail(f"no definition of {mode} here")


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_of_quantize(fmt: str) -> None:
    wrong = []
    for case in (case for case in QUANTIZE_CASES if case.fmt == fmt):
        for dtype in case.dtypes.split():
            value = decode_float(case.block(dtype), dtype)
            for mode in case.modes.split():
                codes, scale = quantize_values(value, value.size, fmt, MODES[mode])
                if scale.item() != case.scale or not np.array_equal(codes, case.block_codes()):
                    wrong.append((case.name, dtype, mode, scale.item(), codes.tobytes().hex()))
    assert not wrong


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_of_dequantize(fmt: str) -> None:
    wrong = []
    for case in (case for case in DEQUANTIZE_CASES if case.fmt == fmt):
        scale = np.array([case.scale], np.uint8)
        bits = dequantize_bits(case.block_codes(), scale, case.block_codes().size, fmt, case.dtype)
        if not np.array_equal(bits, case.block()):
            wrong.append((case.name, case.dtype, case.scale, [hex(b) for b in bits]))
    assert not wrong


def _row_key(case: QuantizeCase | DequantizeCase) -> tuple[str, ...]:
    if isinstance(case, QuantizeCase):
        return case.name, case.fmt, case.modes, case.dtypes
    return case.name, case.fmt, case.dtype, str(case.scale)


@pytest.mark.parametrize(
    "cases", [QUANTIZE_CASES, DEQUANTIZE_CASES], ids=["quantize", "dequantize"]
)
def test_rows_are_well_formed(cases: list[QuantizeCase] | list[DequantizeCase]) -> None:
    """As many codes as values (or one for all), distinct rows, and values their dtypes hold."""
    assert len({_row_key(case) for case in cases}) == len(cases)
    for case in cases:
        assert len(case.codes) == len(case.values) or 1 in (len(case.codes), len(case.values))
        for dtype in case.dtypes.split() if isinstance(case, QuantizeCase) else [case.dtype]:
            for value in (value for value in case.values if isinstance(value, float)):
                held = decode_float(encode_float(np.float64([value]), dtype), dtype)
                np.testing.assert_array_equal(held, [value], err_msg=case.name)


def test_pack_nibbles() -> None:
    """[1, 2] at scale 1 is 0x42 (specification.md, 5)."""
    codes = np.array([[0x2, 0x4], [0x1, 0xF]], np.uint8)
    np.testing.assert_array_equal(pack_nibbles(codes), np.array([[0x42], [0xF1]]))
    np.testing.assert_array_equal(pack_nibbles(codes, axis=0), np.array([[0x12, 0xF4]]))


def test_swizzle_scale() -> None:
    """Offsets by specification.md, 5.4: (r % 32) * 16 + (r // 32) * 4 + c in tiles of 512."""
    scale = np.zeros((2, 130, 5), np.uint8)
    places = {
        (0, 0): 0,
        (1, 0): 16,
        (0, 3): 3,
        (32, 0): 4,
        (127, 3): 31 * 16 + 3 * 4 + 3,
        (0, 4): 512,  # second tile of the first row of tiles
        (33, 4): 512 + 16 + 4,
        (128, 0): 1024,  # second row of tiles
        (129, 4): 1536 + 16,
    }
    for number, (row, column) in enumerate(places, start=1):
        scale[1, row, column] = number
    swizzled = swizzle_scale(scale, padding=0)
    assert swizzled.shape == (2, 64, 32)
    flat = swizzled.reshape(2, -1)
    assert not flat[0].any()
    assert np.count_nonzero(flat[1]) == len(places)
    for number, place in enumerate(places.values(), start=1):
        assert flat[1, place] == number


def test_mode_numbers() -> None:
    assert (FLOOR, CEIL, EVEN, RCEIL) == (0, 1, 2, 3)


def test_nothing_of_the_package_is_left_out() -> None:
    """The tests of bytes go through the oracle's formats and modes, and through these dtypes."""
    assert list(FORMATS) == list(formats.FORMATS)
    assert MODES == {mode.name.lower(): mode.value for mode in ScaleCalculationMode}
    dtypes = {name: fmt.dtype for name, fmt in formats.FORMATS.items() if fmt.dtype is not None}
    assert dtypes == SCALAR_TYPES
