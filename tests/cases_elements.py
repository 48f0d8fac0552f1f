"""Rows on single elements: rounding to the grid once, ties to even, saturation, signs, INT8.

Most blocks hold an anchor that fixes the scale byte at 127 in FLOOR (X = 0), so that the other
elements are rounded as they stand. Notation as in ``cases_scale.py``.
"""

from cases import ALL_DTYPES, ALL_MODES, NOT_CEIL, NOT_FLOOR
from cases import QuantizeCase as Row
from oracle import FORMATS

# --- ties, and one float32 ulp on either side of one ---------------------------------------------

# Per format: the anchor 2^emax and its code, then ties between two neighbours and the even code of
# the two: half of the smallest subnormal, the next ones, subnormal to normal, into the next binade.
# Copies of a format disagreed on these (ROCm/aiter#2247).
TIES = {
    "fp8_e4m3": (256.0, 0x78, {
        0.5 * 2**-9: 0x00, 1.5 * 2**-9: 0x02, 2.5 * 2**-9: 0x02, 7.5 * 2**-9: 0x08,
        1.0625: 0x38, 1.1875: 0x3A, 1.9375: 0x40, 240 + 8.0: 0x78,
    }),
    "fp8_e5m2": (2.0**15, 0x78, {
        0.5 * 2**-16: 0x00, 1.5 * 2**-16: 0x02, 2.5 * 2**-16: 0x02, 3.5 * 2**-16: 0x04,
        1.125: 0x3C, 1.375: 0x3E, 1.625: 0x3E, 1.875: 0x40,
    }),
    "fp6_e2m3": (4.0, 0x18, {
        0.5 / 8: 0x00, 1.5 / 8: 0x02, 2.5 / 8: 0x02, 7.5 / 8: 0x08,
        1.0625: 0x08, 1.1875: 0x0A, 1.9375: 0x10, 4.25: 0x18, 4.75: 0x1A,
    }),
    "fp6_e3m2": (16.0, 0x1C, {
        0.5 / 16: 0x00, 1.5 / 16: 0x02, 2.5 / 16: 0x02, 3.5 / 16: 0x04,
        1.125: 0x0C, 1.375: 0x0E, 1.875: 0x10, 18.0: 0x1C, 22.0: 0x1E,
    }),
    # {.25 .75 1.25 1.75 2.5 3.5 5} -> {0 1 1 2 2 4 4}
    "fp4_e2m1": (4.0, 0x6, {
        0.25: 0x0, 0.75: 0x2, 1.25: 0x2, 1.75: 0x4, 2.5: 0x4, 3.5: 0x6, 5.0: 0x6,
    }),
    # in units of 1/64: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, 62.5 -> 62, 63.5 -> 64, 64.5 -> 64
    "int8": (1.0, 0x40, {
        0.5 / 64: 0, 1.5 / 64: 2, 2.5 / 64: 2, 62.5 / 64: 62, 63.5 / 64: 64, 64.5 / 64: 64,
    }),
}  # fmt: skip


def _negated(fmt: str, code: int) -> int:
    """Code of the negated value: a sign bit, or two's complement."""
    if fmt == "int8":
        return -code & 0xFF
    return code | 1 << (FORMATS[fmt].bits - 1)


def _ties(fmt: str) -> list[Row]:
    anchor, anchor_code, ties = TIES[fmt]
    values, codes = tuple(ties), tuple(ties.values())
    negative_codes = tuple(_negated(fmt, code) for code in codes)
    return [
        Row("ties", "ROCm/aiter#2247", fmt, "floor", ALL_DTYPES,
            (anchor, *values), 127, (anchor_code, *codes)),
        Row("ties_negative", "ROCm/aiter#2247", fmt, "floor", ALL_DTYPES,
            (anchor, *(-v for v in values)), 127, (anchor_code, *negative_codes)),
    ]  # fmt: skip


def _beside_a_tie(fmt: str, name: str, tie_bits: int, below: int, above: int) -> list[Row]:
    """One float32 ulp decides: an intermediate bfloat16 or float16 would make it the tie."""
    anchor, anchor_code, _ = TIES[fmt]
    values = (anchor, tie_bits - 1, tie_bits + 1)
    return [
        Row(name, "triton#11753", fmt, "floor", "f32", values, 127, (anchor_code, below, above))
    ]


# fmt: off
ELEMENT_CASES = [
    *(row for fmt in TIES for row in _ties(fmt)),
    # 1.0625 = 0x3F880000 between 1 and 1.125; 2.5 = 0x40200000 between 2 and 3.
    *_beside_a_tie("fp8_e4m3", "beside_1.0625", 0x3F880000, 0x38, 0x39),
    *_beside_a_tie("fp8_e5m2", "beside_1.125", 0x3F900000, 0x3C, 0x3D),
    *_beside_a_tie("fp6_e2m3", "beside_1.0625", 0x3F880000, 0x08, 0x09),
    *_beside_a_tie("fp6_e3m2", "beside_1.125", 0x3F900000, 0x0C, 0x0D),
    *_beside_a_tie("fp4_e2m1", "beside_2.5", 0x40200000, 0x4, 0x5),
    # 2.5/64 = 1.25 * 2^-5 = 0x3D200000
    *_beside_a_tie("int8", "beside_2.5/64", 0x3D200000, 2, 3),
    # Half of the smallest subnormal: zero below, the smallest above.
    *_beside_a_tie("fp8_e4m3", "beside_2^-10", 0x3A800000, 0x00, 0x01),
    *_beside_a_tie("fp8_e5m2", "beside_2^-17", 0x37000000, 0x00, 0x01),
    *_beside_a_tie("fp6_e2m3", "beside_2^-4", 0x3D800000, 0x00, 0x01),
    *_beside_a_tie("fp6_e3m2", "beside_2^-5", 0x3D000000, 0x00, 0x01),
    *_beside_a_tie("fp4_e2m1", "beside_2^-2", 0x3E800000, 0x00, 0x01),
    *_beside_a_tie("int8", "beside_2^-7", 0x3C000000, 0x00, 0x01),
    # 2.500004 = 0x40200011 became 2.5 in bfloat16 and then 2.
    Row("2.500004", "compressed-tensors#824", "fp4_e2m1", NOT_CEIL, "f32",
        (6.0, 0x40200011, 0xC0200011), 127, (0x7, 0x5, 0xD)),
    # 1.0625001 = 0x3F880001 became 1.0625 in float16 and then 1.
    Row("1.0625001", "triton#11753", "fp8_e4m3", ALL_MODES, "f32",
        (256.0, 0x3F880001, 0xBF880001), 127, (0x78, 0x39, 0xB9)),

    # --- saturation: MX elements never overflow to Inf or NaN ---
    # FLOOR: X = 0, all above 448.
    Row("480_500_511", "pytorch/ao#1912", "fp8_e4m3", "floor", "f32 f16",
        (480.0, -500.0, 511.0), 127, (0x7E, 0xFE, 0x7E)),
    # Else X = 1: 240 = 1.875 * 2^7; 250 and 255.5 -> 256.
    Row("480_500_511", "pytorch/ao#1912", "fp8_e4m3", NOT_FLOOR, "f32 f16",
        (480.0, -500.0, 511.0), 128, (0x77, 0xF8, 0x78)),
    # 480 = 1.875 * 2^8: EVEN does not carry. 450 -> 448.
    Row("480_450", "pytorch/ao#1912", "fp8_e4m3", "floor even", ALL_DTYPES,
        (480.0, 450.0), 127, (0x7E, 0x7E)),
    # X = 1: 240; 225 -> 224 = 1.75 * 2^7.
    Row("480_450", "pytorch/ao#1912", "fp8_e4m3", "ceil rceil", ALL_DTYPES,
        (480.0, 450.0), 128, (0x77, 0x76)),
    # 61440 is where the plain E5M2 cast turns to Inf (code 0x7C).
    Row("61440", "tilelang#2944", "fp8_e5m2", "floor", "f32",
        (61440.0, 57344.0, 65535.0, -65535.0), 127, (0x7B, 0x7B, 0x7B, 0xFB)),
    Row("61440", "tilelang#2944", "fp8_e5m2", "floor", "f16",
        (61440.0, 57344.0, 65504.0, -65504.0), 127, (0x7B, 0x7B, 0x7B, 0xFB)),
    # X = 1: 30720 ties to 32768; 28672 = 1.75 * 2^14; 32767.5 -> 32768.
    Row("61440", "tilelang#2944", "fp8_e5m2", NOT_FLOOR, "f32",
        (61440.0, 57344.0, 65535.0, -65535.0), 128, (0x78, 0x77, 0x78, 0xF8)),
    # 61440 = 1.875 * 2^15 alone: every mode but FLOOR carries.
    Row("61440_alone", "musubi-tuner#192", "fp8_e5m2", "floor", ALL_DTYPES,
        (61440.0,), 127, (0x7B,)),
    Row("61440_alone", "musubi-tuner#192", "fp8_e5m2", NOT_FLOOR, ALL_DTYPES,
        (61440.0,), 128, (0x78,)),
    # FLOOR: 7 saturates, 5 ties to 4, 2.5 ties to 2. Else X = 1: 3.5 -> 4, 2.5 -> 2, 1.25 -> 1.
    Row("7_5_2.5", "3.5", "fp4_e2m1", "floor", ALL_DTYPES,
        (7.0, 5.0, 2.5), 127, (0x7, 0x6, 0x4)),
    Row("7_5_2.5", "3.5", "fp4_e2m1", NOT_FLOOR, ALL_DTYPES,
        (7.0, 5.0, 2.5), 128, (0x6, 0x4, 0x2)),
    # CEIL: X = 1 already for 6. 3, 1.25 -> 1, 1.75 -> 2.
    Row("6_2.5_3.5", "ROCm/aiter#2247", "fp4_e2m1", NOT_CEIL, ALL_DTYPES,
        (6.0, 2.5, 3.5), 127, (0x7, 0x4, 0x6)),
    Row("6_2.5_3.5", "ROCm/aiter#2247", "fp4_e2m1", "ceil", ALL_DTYPES,
        (6.0, 2.5, 3.5), 128, (0x5, 0x2, 0x4)),
    # 5 = 1.25 * 4. CEIL: X = 1: 2, 0.125 -> 0, 0.625 -> 0.5, 2.5 -> 2.
    Row("4_.25_1.25_5", "ROCm/aiter#2247", "fp4_e2m1", NOT_CEIL, ALL_DTYPES,
        (4.0, 0.25, 1.25, 5.0), 127, (0x6, 0x0, 0x2, 0x6)),
    Row("4_.25_1.25_5", "ROCm/aiter#2247", "fp4_e2m1", "ceil", ALL_DTYPES,
        (4.0, 0.25, 1.25, 5.0), 128, (0x4, 0x0, 0x1, 0x4)),

    # --- INT8: 64 is 1.0, symmetric, one zero ---
    # 1.9999 = 0x3FFFFCB9: 127.99 -> 128, saturated. 2^-7 and 3 * 2^-7 are 0.5 and 1.5 units.
    Row("units", "amd/Quark#12", "int8", "floor", "f32",
        (1.0, 0.5, 2.0**-6, 2.0**-7, 3 * 2.0**-7, 0x3FFFFCB9, 0xBFFFFCB9),
        127, (0x40, 0x20, 0x01, 0x00, 0x02, 0x7F, 0x81)),
    # -2: X = 1, -64. Never -128.
    Row("minus_two", "amd/Quark#12", "int8", ALL_MODES, ALL_DTYPES, (-2.0, 2.0), 128, (0xC0, 0x40)),
    # 1.99 = 0x3FFEB852: 127.36 -> 127. The other modes have X = 1: 63.68, 63.997, 0.25, 0.75.
    Row("near_two", "3.5", "int8", "floor", "f32",
        (0x3FFEB852, 0xBFFFFCB9, 2.0**-7, 3 * 2.0**-7), 127, (0x7F, 0x81, 0x00, 0x02)),
    Row("near_two", "3.5", "int8", NOT_FLOOR, "f32",
        (0x3FFEB852, 0xBFFFFCB9, 2.0**-7, 3 * 2.0**-7), 128, (0x40, 0xC0, 0x00, 0x01)),

    # --- signs: kept on zeros and on what rounds to zero; INT8 has one zero ---
    # P of 1 is 2^emax; 2^-40 underflows everywhere. All modes: 1 is a power of two.
    *(Row("signs_of_zero", "3.5", fmt, ALL_MODES, "f32 bf16",
          (1.0, 0.0, -0.0, 2.0**-40, -(2.0**-40)), scale, (one, 0, minus_zero, 0, minus_zero))
      for fmt, scale, one, minus_zero in (
          ("fp8_e4m3", 119, 0x78, 0x80), ("fp8_e5m2", 112, 0x78, 0x80),
          ("fp6_e2m3", 125, 0x18, 0x20), ("fp6_e3m2", 123, 0x1C, 0x20),
          ("fp4_e2m1", 125, 0x06, 0x08), ("int8", 127, 0x40, 0x00),
      )),
    # 1e-9 = 0x3089705F * 2^15 = 3.28e-5 is 2.15 * 2^-16: E5M2 still holds it.
    Row("1e-9", "3.5", "fp8_e5m2", ALL_MODES, "f32", (1.0, 0x3089705F, 0xB089705F),
        112, (0x78, 0x02, 0x82)),
    # [1, 2, 4] -> codes 2, 4, 6: the first byte is 0x42 (pytorch/ao#2939, tests/test_cases.py).
    Row("1_2_4", "pytorch/ao#2939", "fp4_e2m1", ALL_MODES, ALL_DTYPES, (1.0, 2.0, 4.0),
        127, (0x2, 0x4, 0x6)),
    # One code per byte, low six bits (pytorch/ao#1810 packed four into three bytes).
    Row("codes_1_2_4_8", "pytorch/ao#1810", "fp6_e2m3", ALL_MODES, ALL_DTYPES,
        (0.125, 0.25, 0.5, 1.0, 4.0), 127, (0x01, 0x02, 0x04, 0x08, 0x18)),
]
# fmt: on
