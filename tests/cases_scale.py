"""Rows on special values and on the shared exponent: NaN, Inf, zero, clamps, the four scale rules.

Notation in the comments: ``X`` is the shared exponent, the scale byte is X + 127, and an element is
P = v * 2^-X before rounding.
"""

from math import inf, nan

from cases import ALL_DTYPES, ALL_MODES, NOT_CEIL, NOT_FLOOR
from cases import QuantizeCase as Row

FLT_MAX = 0x7F7FFFFF

# Code that fills a NaN block, code of -0.0 (specification.md, 3.2 and 3.5).
SPECIAL_CODES = {
    "fp8_e4m3": (0x7F, 0x80),
    "fp8_e5m2": (0x7F, 0x80),
    "fp6_e2m3": (0x00, 0x20),
    "fp6_e3m2": (0x00, 0x20),
    "fp4_e2m1": (0x00, 0x08),
    "int8": (0x00, 0x00),
}


def _special(fmt: str, nan_code: int, minus_zero: int) -> list[Row]:
    """specification.md, 3.2: one NaN or Inf makes the block NaN, zeros keep their signs."""

    def nan_block(name: str, source: str, dtypes: str, *values: float | int) -> Row:
        return Row(name, source, fmt, ALL_MODES, dtypes, values, 0xFF, (nan_code,))

    def zero_block(name: str, values: tuple[float, ...], codes: tuple[int, ...]) -> Row:
        source = "kernels-community#680"
        return Row(name, source, fmt, ALL_MODES, ALL_DTYPES, values, 0, codes)

    rest = [1.0] * 31
    return [
        nan_block("nan_among_finite", "pytorch/ao#4201", ALL_DTYPES, nan, 1.0, -2.0, 0.0),
        nan_block("nan_first", "triton#10291", ALL_DTYPES, nan, *rest),
        nan_block("nan_middle", "triton#10291", ALL_DTYPES, *rest[:15], nan, *rest[15:]),
        nan_block("nan_last", "triton#10291", ALL_DTYPES, *rest, nan),
        nan_block("nan_only", "triton#10291", ALL_DTYPES, nan),
        nan_block("nan_in_zeros", "triton#10291", ALL_DTYPES, 0.0, -0.0, nan),
        nan_block("inf_both_signs", "flashinfer#4023", ALL_DTYPES, inf, 1.0, -inf, 0.0),
        nan_block("inf_negative", "flashinfer#4023", ALL_DTYPES, 1.0, -inf),
        nan_block("inf_and_nan", "3.2", ALL_DTYPES, -inf, nan, 0.0),
        # NaNs by their bits: signalling, negative, every payload bit set.
        nan_block("nan_signalling_f32", "3.1", "f32", 1.0, 0x7F800001),
        nan_block("nan_negative_signalling_f32", "3.1", "f32", 1.0, 0xFF800001),
        nan_block("nan_all_ones_f32", "3.1", "f32", 0xFFFFFFFF, FLT_MAX),
        nan_block("nan_signalling_bf16", "3.1", "bf16", 1.0, 0x7F81),
        nan_block("nan_all_ones_bf16", "3.1", "bf16", 1.0, 0xFFFF),
        nan_block("nan_signalling_f16", "3.1", "f16", 1.0, 0x7C01),
        nan_block("nan_all_ones_f16", "3.1", "f16", 1.0, 0xFFFF),
        zero_block("zeros", (0.0,), (0,)),
        zero_block("zeros_signed", (0.0, -0.0, -0.0), (0, minus_zero, minus_zero)),
        zero_block("zeros_negative", (-0.0,), (minus_zero,)),
    ]


# Thresholds of the scale rules. Each row: the threshold in f32, bf16 and f16 bits, then scale byte
# and code of an amax one ulp below, at, and one ulp above it.
THRESHOLDS = {
    # specification.md, 3.3, RCEIL: X goes up just above max_normal * 2^k (onnxruntime#32122).
    # Below and at it P rounds to the maximum; above it P is half the maximum.
    "rceil": {
        # 448 = 1.75 * 2^8; above: 224 = 1.75 * 2^7
        "fp8_e4m3": (0x43E00000, 0x43E0, 0x5F00, (127, 0x7E), (127, 0x7E), (128, 0x76)),
        # 57344 = 1.75 * 2^15; above: 28672 = 1.75 * 2^14
        "fp8_e5m2": (0x47600000, 0x4760, 0x7B00, (127, 0x7B), (127, 0x7B), (128, 0x77)),
        # 7.5 = 1.875 * 4; above: 3.75
        "fp6_e2m3": (0x40F00000, 0x40F0, 0x4780, (127, 0x1F), (127, 0x1F), (128, 0x17)),
        # 28 = 1.75 * 16; above: 14
        "fp6_e3m2": (0x41E00000, 0x41E0, 0x4F00, (127, 0x1F), (127, 0x1F), (128, 0x1B)),
        # 6 = 1.5 * 4; above: 3
        "fp4_e2m1": (0x40C00000, 0x40C0, 0x4600, (127, 0x07), (127, 0x07), (128, 0x05)),
        # 127/64 = 1.984375; above: 63.5 and a little, in units of 1/64.
        # One bfloat16 ulp below is 126.5, a tie: a row of its own, int8_tie_below_max.
        "int8": (0x3FFE0000, None, 0x3FF0, (127, 0x7F), (127, 0x7F), (128, 0x40)),
    },
    # specification.md, 3.3, EVEN: the significand is rounded half up to m bits, so it carries from
    # 2 - 2^-(m+1) on (ROCm/aiter#3212). Below it P saturates; from it on P is 2^emax, some by a
    # tie to even.
    "even": {
        # m=3: 1.9375. 495.99 -> 448; 248 ties between 240 and 256
        "fp8_e4m3": (0x3FF80000, 0x3FF8, 0x3FC0, (119, 0x7E), (120, 0x78), (120, 0x78)),
        # m=2: 1.875. 61439.9 -> 57344; 1.875 * 2^14 ties between 1.75 * 2^14 and 2^15
        "fp8_e5m2": (0x3FF00000, 0x3FF0, 0x3F80, (112, 0x7B), (113, 0x78), (113, 0x78)),
        # m=3: 1.9375. 7.7499 -> 7.5; 3.875 ties between 3.75 and 4
        "fp6_e2m3": (0x3FF80000, 0x3FF8, 0x3FC0, (125, 0x1F), (126, 0x18), (126, 0x18)),
        # m=2: 1.875. 29.999 -> 28; 15 ties between 14 and 16
        "fp6_e3m2": (0x3FF00000, 0x3FF0, 0x3F80, (123, 0x1F), (124, 0x1C), (124, 0x1C)),
        # m=1: 1.75. 6.9999 -> 6; 3.5 ties between 3 and 4
        "fp4_e2m1": (0x3FE00000, 0x3FE0, 0x3F00, (125, 0x07), (126, 0x06), (126, 0x06)),
        # m=6: 1.9921875. 127.49 -> 127; 63.75 -> 64
        "int8": (0x3FFF0000, 0x3FFF, 0x3FF8, (127, 0x7F), (128, 0x40), (128, 0x40)),
    },
    # specification.md, 3.3, CEIL: at a power of two X is exact, one ulp above it is one more.
    # amax 1.0: below and at it P is 2^emax, above it 2^(emax-1).
    "ceil": {
        "fp8_e4m3": (0x3F800000, 0x3F80, 0x3C00, (119, 0x78), (119, 0x78), (120, 0x70)),
        "fp8_e5m2": (0x3F800000, 0x3F80, 0x3C00, (112, 0x78), (112, 0x78), (113, 0x74)),
        "fp6_e2m3": (0x3F800000, 0x3F80, 0x3C00, (125, 0x18), (125, 0x18), (126, 0x10)),
        "fp6_e3m2": (0x3F800000, 0x3F80, 0x3C00, (123, 0x1C), (123, 0x1C), (124, 0x18)),
        "fp4_e2m1": (0x3F800000, 0x3F80, 0x3C00, (125, 0x06), (125, 0x06), (126, 0x04)),
        "int8": (0x3F800000, 0x3F80, 0x3C00, (127, 0x40), (127, 0x40), (128, 0x20)),
    },
    # specification.md, 3.3, FLOOR: one ulp below 8 X is still 2 and P saturates (log2 says 3).
    "floor": {
        "fp8_e4m3": (0x41000000, 0x4100, 0x4800, (121, 0x7E), (122, 0x78), (122, 0x78)),
        "fp8_e5m2": (0x41000000, 0x4100, 0x4800, (114, 0x7B), (115, 0x78), (115, 0x78)),
        "fp6_e2m3": (0x41000000, 0x4100, 0x4800, (127, 0x1F), (128, 0x18), (128, 0x18)),
        "fp6_e3m2": (0x41000000, 0x4100, 0x4800, (125, 0x1F), (126, 0x1C), (126, 0x1C)),
        "fp4_e2m1": (0x41000000, 0x4100, 0x4800, (127, 0x07), (128, 0x06), (128, 0x06)),
        "int8": (0x41000000, 0x4100, 0x4800, (129, 0x7F), (130, 0x40), (130, 0x40)),
    },
}
SIDES = ("below", "at", "above")
THRESHOLD_SOURCE = {
    "rceil": "onnxruntime#32122",
    "even": "ROCm/aiter#3212",
    "ceil": "3.3",
    "floor": "vllm#43557",
}


def _thresholds(fmt: str, mode: str) -> list[Row]:
    f32, bf16, f16, *expected = THRESHOLDS[mode][fmt]
    rows = []
    for dtype, at in (("f32", f32), ("bf16", bf16), ("f16", f16)):
        # Far from 1 the bytes move with the exponent: log2 in float32 cannot resolve one ulp at
        # 2^100, and at -127 the scale byte is 0 (flashinfer#4679).
        shifts = (0, 100, -100, -127) if dtype == "f32" else (0,)
        for k in shifts:
            if at is None or not 0 < at + (k << 23) < 0x7F800000:
                continue
            for side, step, (scale, code) in zip(SIDES, (-1, 0, 1), expected, strict=True):
                if scale + k < 0 or (k and at + (k << 23) < 0x00800001):
                    continue  # clamped or subnormal: rows of their own below
                bits = at + (k << 23) + step
                name = f"{mode}_threshold_{side}_{dtype}_2^{k}"
                source = THRESHOLD_SOURCE[mode]
                rows.append(Row(name, source, fmt, mode, dtype, (bits,), scale + k, (code,)))
    return rows


# fmt: off
SCALE_ROWS = [
    # --- amax = 1.5 * 2^k: never the generic float-to-e8m0 cast (ml_dtypes#298) ---
    # 1.5 is no power of two (CEIL: one more), and no format carries or exceeds its maximum at 1.5.
    # P = 1.5 * 2^emax, or half of it in CEIL.
    *(Row(f"one_and_a_half_2^{k}_{modes[:4]}", "ml_dtypes#298", fmt, modes, "f32",
                   (1.5 * 2.0**k,), scale + k, (code,))
      for fmt, modes, scale, code in (
          ("fp8_e4m3", NOT_CEIL, 119, 0x7C), ("fp8_e4m3", "ceil", 120, 0x74),  # 384, 192
          ("fp8_e5m2", NOT_CEIL, 112, 0x7A), ("fp8_e5m2", "ceil", 113, 0x76),  # 49152
          ("fp6_e2m3", NOT_CEIL, 125, 0x1C), ("fp6_e2m3", "ceil", 126, 0x14),  # 6, 3
          ("fp6_e3m2", NOT_CEIL, 123, 0x1E), ("fp6_e3m2", "ceil", 124, 0x1A),  # 24, 12
          ("fp4_e2m1", NOT_CEIL, 125, 0x07), ("fp4_e2m1", "ceil", 126, 0x05),  # 6, 3
          ("int8", NOT_CEIL, 127, 0x60), ("int8", "ceil", 128, 0x30),  # 96/64, 48/64
      )
      for k in (0, 50, -50)),
    # --- single reports ---
    # floor(log2 960) = 9, X = 1: 478.5 and 480 saturate, 416 = 1.625 * 2^8.
    Row("957_floor", "microxcaling#4", "fp8_e4m3", "floor even", "f32 f16",
        (957.0, 960.0, 832.0), 128, (0x7E, 0x7E, 0x7D)),
    # 960 = 1.875 * 2^9 exceeds 1.75: X = 2. 239.25 -> 240 = 1.875 * 2^7, 208 = 1.625 * 2^7.
    Row("957_rceil", "microxcaling#4", "fp8_e4m3", "ceil rceil", "f32 f16",
        (957.0, 960.0, 832.0), 129, (0x77, 0x77, 0x75)),
    # floor(log2(5.5 / 6)) = -1 is not FLOOR: floor(log2 5.5) - 2 = 0, and 5.5 -> 6 = 1.5 * 4.
    Row("5.5_is_not_halved", "vllm#43557", "fp4_e2m1", NOT_CEIL, ALL_DTYPES,
        (5.5, 0.0), 127, (0x7, 0x0)),
    # CEIL: X = 1, 2.75 -> 3.
    Row("5.5_ceil", "vllm#43557", "fp4_e2m1", "ceil", ALL_DTYPES, (5.5, 0.0), 128, (0x5, 0x0)),
    # floor(log2 448) = 8 = emax: byte 127, not 135, and 1/256 = 2 * 2^-9 survives.
    Row("448_keeps_emax", "vllm#53110", "fp8_e4m3", NOT_CEIL, ALL_DTYPES,
        (448.0, 1 / 256), 127, (0x7E, 0x02)),
    # CEIL: X = 1. 224 = 1.75 * 2^7; 1/512 = 1 * 2^-9.
    Row("448_ceil", "vllm#53110", "fp8_e4m3", "ceil", ALL_DTYPES,
        (448.0, 1 / 256), 128, (0x76, 0x01)),
    # EVEN with FP4's one mantissa bit would carry at 1.75; E4M3 carries at 1.9375. P = 448.
    Row("1.75_e4m3", "ROCm/aiter#3212", "fp8_e4m3", "even", ALL_DTYPES, (1.75,), 119, (0x7E,)),
    # e2m1 does carry: X = 1 - 2, P = 3.5 ties between 3 (0x5) and 4 (0x6).
    Row("1.75_e2m1", "ROCm/aiter#3212", "fp4_e2m1", NOT_FLOOR, ALL_DTYPES, (1.75,), 126, (0x6,)),
    # FLOOR: X = -2, P = 7 saturates.
    Row("1.75_floor", "ROCm/aiter#3212", "fp4_e2m1", "floor", ALL_DTYPES, (1.75,), 125, (0x7,)),
    # 448 = 1.75 * 2^8. FLOOR: X = 6, 7 saturates. Else X = 7: 3.5 ties to 4. 1/64, 1/128 vanish.
    Row("448_e2m1_floor", "3.3", "fp4_e2m1", "floor", ALL_DTYPES,
        (448.0, 1.0), 133, (0x7, 0x0)),
    Row("448_e2m1", "3.3", "fp4_e2m1", NOT_FLOOR, ALL_DTYPES, (448.0, 1.0), 134, (0x6, 0x0)),
    # 7.9 = 1.975 * 4 saturates at 7.5; with X = 1, 3.95 -> 4.
    Row("7.9_floor", "3.3", "fp6_e2m3", "floor", "f32", (0x40FCCCCD,), 127, (0x1F,)),
    Row("7.9_carry", "3.3", "fp6_e2m3", NOT_FLOOR, "f32", (0x40FCCCCD,), 128, (0x18,)),
    # 31 = 1.9375 * 16 saturates at 28; with X = 1, 15.5 -> 16.
    Row("31_floor", "3.3", "fp6_e3m2", "floor", ALL_DTYPES, (31.0,), 127, (0x1F,)),
    Row("31_carry", "3.3", "fp6_e3m2", NOT_FLOOR, ALL_DTYPES, (31.0,), 128, (0x1C,)),
    # One bfloat16 ulp below 127/64: 126.5 ties to 126.
    Row("int8_tie_below_max", "3.5", "int8", NOT_CEIL, "bf16", (0x3FFD,), 127, (0x7E,)),
]
# fmt: on


SCALE_CASES: list[Row] = list(SCALE_ROWS)
for _fmt, (_nan_code, _minus_zero) in SPECIAL_CODES.items():
    SCALE_CASES += _special(_fmt, _nan_code, _minus_zero)
    for _mode in THRESHOLDS:
        SCALE_CASES += _thresholds(_fmt, _mode)
