"""Rows at the ends of the ranges: clamped scale bytes, subnormal and largest inputs, fp16's ends.

``X`` is the shared exponent, the scale byte is X + 127 after clamping X to [-127, 127], and an
element is P = v * 2^-X before rounding. Most rows come from a table with one line a format.
"""

from cases import ALL_MODES, NOT_CEIL, NOT_FLOOR
from cases import QuantizeCase as Row


def _each(
    name: str,
    source: str,
    modes: str,
    dtypes: str,
    values: tuple[float | int, ...],
    expected: dict[str, tuple[int, tuple[int, ...]]],
) -> list[Row]:
    """One row per format: ``expected`` gives its scale byte and codes."""
    return [
        Row(name, source, fmt, modes, dtypes, values, scale, codes)
        for fmt, (scale, codes) in expected.items()
    ]


# --- the largest finite inputs: never a NaN block (specification.md, 3.3) ---
# TorchAO's EVEN gives 0xFF here.

# FLOOR: X = 127 - emax, the significand is nearly 2 and P saturates.
LARGEST_FLOOR = {
    "fp8_e4m3": (246, (0x7E, 0xFE)),
    "fp8_e5m2": (239, (0x7B, 0xFB)),
    "fp6_e2m3": (252, (0x1F, 0x3F)),
    "fp6_e3m2": (250, (0x1F, 0x3F)),
    "fp4_e2m1": (252, (0x07, 0x0F)),
    "int8": (254, (0x7F, 0x81)),
}
# The others: X = 128 - emax, P rounds up to 2^emax. INT8 has emax 0: the clamp to 127 comes after
# the carry, so P is nearly 2 and saturates at 127/64.
LARGEST_CARRY = {
    "fp8_e4m3": (247, (0x78, 0xF8)),
    "fp8_e5m2": (240, (0x78, 0xF8)),
    "fp6_e2m3": (253, (0x18, 0x38)),
    "fp6_e3m2": (251, (0x1C, 0x3C)),
    "fp4_e2m1": (253, (0x06, 0x0E)),
    "int8": (254, (0x7F, 0x81)),
}
# 1.9375 * 2^127 in EVEN: E4M3 and E2M3 carry exactly at 1.9375, and 248 and 3.875 tie to 256 and 4.
# INT8 does not carry: 1.9375 * 64 = 124.
EVEN_AT_TOP = LARGEST_CARRY | {"int8": (254, (0x7C, 0x84))}

LARGEST_CASES = [
    *_each("flt_max", "3.3", "floor", "f32", (0x7F7FFFFF, 0xFF7FFFFF), LARGEST_FLOOR),
    *_each("flt_max", "3.3", NOT_FLOOR, "f32", (0x7F7FFFFF, 0xFF7FFFFF), LARGEST_CARRY),
    # 1.9921875 * 2^127: for INT8 127.5 -> 128 -> 127 by saturation.
    *_each("bf16_max", "3.3", "floor", "bf16", (0x7F7F, 0xFF7F), LARGEST_FLOOR),
    *_each("bf16_max", "3.3", NOT_FLOOR, "bf16", (0x7F7F, 0xFF7F), LARGEST_CARRY),
    *_each("carry_at_top", "3.3", "even", "f32", (0x7F780000, 0xFF780000), EVEN_AT_TOP),
    *_each("carry_at_top", "3.3", "even", "bf16", (0x7F78, 0xFF78), EVEN_AT_TOP),
    # CEIL gives X = 128, clamped: P = 1.5 and not 0.75. The other modes give 127 at once.
    Row("clamped_at_top", "3.3", "int8", ALL_MODES, "f32 bf16",
        (1.5 * 2.0**127, -(2.0**127)), 254, (0x60, 0xC0)),
]  # fmt: skip

# --- fp16: its ends are in the middle of the scale's range ------------------------------------

# 65504 = 1.999 * 2^15. FLOOR: X = 15 - emax, saturated. Others: X = 16 - emax, P -> 2^emax.
FP16_MAX_FLOOR = {
    "fp8_e4m3": (134, (0x7E,)),
    "fp8_e5m2": (127, (0x7B,)),
    "fp6_e2m3": (140, (0x1F,)),
    "fp6_e3m2": (138, (0x1F,)),
    "fp4_e2m1": (140, (0x07,)),
    "int8": (142, (0x7F,)),
}
FP16_MAX_CARRY = {
    "fp8_e4m3": (135, (0x78,)),
    "fp8_e5m2": (128, (0x78,)),
    "fp6_e2m3": (141, (0x18,)),
    "fp6_e3m2": (139, (0x1C,)),
    "fp4_e2m1": (141, (0x06,)),
    "int8": (143, (0x40,)),
}
# 2^-24, the smallest: X = -24 - emax, P = 2^emax.
FP16_SMALLEST = {
    "fp8_e4m3": (95, (0x78, 0xF8)),
    "fp8_e5m2": (88, (0x78, 0xF8)),
    "fp6_e2m3": (101, (0x18, 0x38)),
    "fp6_e3m2": (99, (0x1C, 0x3C)),
    "fp4_e2m1": (101, (0x06, 0x0E)),
    "int8": (103, (0x40, 0xC0)),
}

FP16_CASES = [
    *_each("fp16_max", "3.3", "floor", "f16 f32", (65504.0,), FP16_MAX_FLOOR),
    *_each("fp16_max", "3.3", NOT_FLOOR, "f16 f32", (65504.0,), FP16_MAX_CARRY),
    *_each("fp16_smallest", "3.3", ALL_MODES, "f16 f32 bf16", (2.0**-24, -(2.0**-24)),
           FP16_SMALLEST),
    # 0x03FF = 1023 * 2^-24 = 1.998 * 2^-15, the largest subnormal. FLOOR: X = -15 - 8, 511.5
    # saturates; the others carry: 255.75 -> 256.
    Row("fp16_subnormal", "3.3", "fp8_e4m3", "floor", "f16", (0x03FF,), 104, (0x7E,)),
    Row("fp16_subnormal", "3.3", "fp8_e4m3", NOT_FLOOR, "f16", (0x03FF,), 105, (0x78,)),
]  # fmt: skip

# --- the smallest inputs: scale byte 0 is 2^-127, the elements carry the rest -----------------

# 2^-130 / 2^-127 = 2^-3, a subnormal in the 6-bit formats; e2m1: below 0.25, half its smallest.
TINY = {
    "fp8_e4m3": (0, (0x20, 0xA0)),
    "fp8_e5m2": (0, (0x30, 0xB0)),
    "fp6_e2m3": (0, (0x01, 0x21)),
    "fp6_e3m2": (0, (0x02, 0x22)),
    "fp4_e2m1": (0, (0x00, 0x08)),
    "int8": (0, (0x08, 0xF8)),
}
# 2^-149 / 2^-127 = 2^-22 underflows everywhere; the sign stays.
SMALLEST = {
    "fp8_e4m3": (0, (0x00, 0x80)),
    "fp8_e5m2": (0, (0x00, 0x80)),
    "fp6_e2m3": (0, (0x00, 0x20)),
    "fp6_e3m2": (0, (0x00, 0x20)),
    "fp4_e2m1": (0, (0x00, 0x08)),
    "int8": (0, (0x00, 0x00)),
}
# 2^-126 / 2^-127 = 2. INT8's X is -126 itself: byte 1, P = 1.
SMALLEST_NORMAL = {
    "fp8_e4m3": (0, (0x40, 0xC0)),
    "fp8_e5m2": (0, (0x40, 0xC0)),
    "fp6_e2m3": (0, (0x10, 0x30)),
    "fp6_e3m2": (0, (0x10, 0x30)),
    "fp4_e2m1": (0, (0x04, 0x0C)),
    "int8": (1, (0x40, 0xC0)),
}
LARGEST_SUBNORMAL = {fmt: row for fmt, row in SMALLEST_NORMAL.items() if fmt != "int8"}

# fmt: off
SMALLEST_CASES = [
    *_each("tiny", "flashinfer#4679", ALL_MODES, "f32 bf16", (2.0**-130, -(2.0**-130)), TINY),
    *_each("smallest", "flashinfer#4679", ALL_MODES, "f32", (2.0**-149, -(2.0**-149)), SMALLEST),
    *_each("smallest_normal", "flashinfer#4679", ALL_MODES, "f32 bf16", (2.0**-126, -(2.0**-126)),
           SMALLEST_NORMAL),
    # The significand is nearly 2 in float32 and 127/64 in bfloat16; both round up to 2 * 2^-127.
    *_each("largest_subnormal", "TensorLib#99", ALL_MODES, "f32", (0x007FFFFF, 0x807FFFFF),
           LARGEST_SUBNORMAL),
    *_each("largest_subnormal", "TensorLib#99", ALL_MODES, "bf16", (0x007F, 0x807F),
           LARGEST_SUBNORMAL),
    # INT8 sees the shared exponent of subnormals: the significand has to be normalised first.
    # X = -127, P = 1.9999998 saturates; with the carry X = -126, P = 0.9999999 -> 64/64.
    Row("largest_subnormal", "3.3", "int8", "floor", "f32", (0x007FFFFF,), 0, (0x7F,)),
    Row("largest_subnormal", "3.3", "int8", NOT_FLOOR, "f32", (0x007FFFFF,), 1, (0x40,)),
    # 127/64 * 2^-127 exactly: RCEIL stays, EVEN does not carry; CEIL: 63.5 ties to 64.
    Row("max_at_byte_0", "3.3", "int8", NOT_CEIL, "f32", (0x007F0000,), 0, (0x7F,)),
    Row("max_at_byte_0", "3.3", "int8", "ceil", "f32", (0x007F0000,), 1, (0x40,)),
    Row("max_at_byte_0", "3.3", "int8", NOT_CEIL, "bf16", (0x007F,), 0, (0x7F,)),
    Row("max_at_byte_0", "3.3", "int8", "ceil", "bf16", (0x007F,), 1, (0x40,)),
    Row("above_max_at_byte_0", "3.3", "int8", "rceil", "f32", (0x007F0001,), 1, (0x40,)),
    Row("below_max_at_byte_0", "3.3", "int8", "rceil", "f32", (0x007EFFFF,), 0, (0x7F,)),
    # Around 448 * 2^-127 = 0x04600000 the modes part: FLOOR and EVEN stay at byte 0 (448.00003
    # saturates), CEIL is at 1 already (224 = 1.75 * 2^7). RCEIL: threshold rows with k = -127.
    Row("448_at_byte_0", "TensorLib#99", "fp8_e4m3", "floor even", "f32",
        (0x04600001, 0x04600000, 0x045FFFFF), 0, (0x7E, 0x7E, 0x7E)),
    Row("448_at_byte_0", "TensorLib#99", "fp8_e4m3", "ceil", "f32",
        (0x04600001, 0x04600000, 0x045FFFFF), 1, (0x76, 0x76, 0x76)),
    # The clamp from below: E5M2 has emax 15. 2^-111 is X = -126; 2^-112 is X = -127; 2^-113 would
    # be X = -128, clamped, P = 2^14.
    Row("above_clamp", "3.3", "fp8_e5m2", ALL_MODES, "f32 bf16", (2.0**-111,), 1, (0x78,)),
    Row("at_clamp", "3.3", "fp8_e5m2", ALL_MODES, "f32 bf16", (2.0**-112,), 0, (0x78,)),
    Row("under_clamp", "3.3", "fp8_e5m2", ALL_MODES, "f32 bf16", (2.0**-113,), 0, (0x74,)),
    # bf16 5e-36 = 213/128 * 2^-118: X = -126. 13.3125/8 * 2^8 -> 13/8; half of it likewise; the
    # smallest bfloat16, 2^-133, is 2^-7 = 4 * 2^-9. An Inf reciprocal made NaNs of such a block.
    Row("5e-36", "flashinfer#2440", "fp8_e4m3", NOT_CEIL, "bf16",
        (0x04D5, 0x0455, 0x0001), 1, (0x7D, 0x75, 0x04)),
    Row("5e-36", "flashinfer#2440", "fp8_e4m3", "ceil", "bf16",
        (0x04D5, 0x0455, 0x0001), 2, (0x75, 0x6D, 0x02)),
]
# fmt: on

EXTREME_CASES = [*LARGEST_CASES, *FP16_CASES, *SMALLEST_CASES]
