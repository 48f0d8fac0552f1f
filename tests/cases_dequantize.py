"""Rows on dequantization: decoded scale bytes, special codes, overflow, one rounding to the dtype.

A result is value(code) * 2^(b - 127), b the scale byte; the comments write v * 2^(b - 127).
"""

from math import inf, nan

from cases import DequantizeCase as Row

# Code of 1.0; e2m1's is a nibble, INT8's is 64/64.
ONE = {
    "fp8_e4m3": 0x38,
    "fp8_e5m2": 0x3C,
    "fp6_e2m3": 0x08,
    "fp6_e3m2": 0x0C,
    "fp4_e2m1": 0x02,
    "int8": 0x40,
}
# 1.0 at the ends of the scale (TransformerEngine#3262, triton#11624): shifting the byte left by 23
# gives 0 and Inf. 2^-127 is a subnormal in float32 and bfloat16; float16 ends at 2^-24 and 65504.
SCALE_ENDS = {
    "f32": {0: 0x00400000, 1: 0x00800000, 127: 0x3F800000, 254: 0x7F000000, 255: 0x7FC00000},
    "bf16": {0: 0x0040, 1: 0x0080, 127: 0x3F80, 254: 0x7F00, 255: 0x7FC0},
    "f16": {0: 0x0000, 1: 0x0000, 127: 0x3C00, 254: 0x7C00, 255: 0x7E00},
}

# fmt: off
DEQUANTIZE_CASES = [
    *(Row(f"one_at_{scale}", "TransformerEngine#3262", fmt, dtype, scale, (one,), (bits,))
      for fmt, one in ONE.items()
      for dtype, by_scale in SCALE_ENDS.items()
      for scale, bits in by_scale.items()),
    # Byte 134 is 128.0, once taken for the NaN sentinel.
    *(Row("one_at_134", "sglang#25519", fmt, dtype, 134, (one,), (128.0,))
      for fmt, one in ONE.items() for dtype in SCALE_ENDS),
    # 0xFF makes NaN of every code, zeros, NaNs and Infs included: the positive quiet one.
    *(Row("nan_scale", "4", fmt, dtype, 255, (0x00, 0x01, 0x7C & mask, 0xFF & mask), (nan,))
      for fmt, mask in (("fp8_e4m3", 0xFF), ("fp8_e5m2", 0xFF), ("fp6_e2m3", 0x3F),
                        ("fp6_e3m2", 0x3F), ("fp4_e2m1", 0xF), ("int8", 0xFF))
      for dtype in SCALE_ENDS),
    # Signed zeros at both ends of the scale: never Inf * 0. INT8 has one zero.
    *(Row("zeros", "flashinfer#4023", fmt, dtype, scale, (0x00, minus_zero), (0.0, -0.0))
      for fmt, minus_zero in (("fp8_e4m3", 0x80), ("fp8_e5m2", 0x80), ("fp6_e2m3", 0x20),
                              ("fp6_e3m2", 0x20), ("fp4_e2m1", 0x8))
      for dtype in SCALE_ENDS for scale in (0, 127, 254)),
    *(Row("zero", "flashinfer#4023", "int8", "f32", scale, (0x00,), (0.0,))
      for scale in (0, 127, 254)),

    # --- element codes that are no numbers ---
    # E4M3 has one NaN pattern per sign, E5M2 three, and Inf. Sign and payload are not kept on NaN.
    *(Row("nan_codes", "4", "fp8_e4m3", dtype, scale, (0x7F, 0xFF, 0x00), (nan, nan, 0.0))
      for dtype in SCALE_ENDS for scale in (0, 127, 254)),
    *(Row("nan_inf_codes", "4", "fp8_e5m2", dtype, scale,
          (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF, 0x7C, 0xFC),
          (nan, nan, nan, nan, nan, nan, inf, -inf))
      for dtype in SCALE_ENDS for scale in (0, 127, 254)),
    # INT8 -128, never written by quantize_mx, is read as -2.0.
    Row("minus_128", "2", "int8", "f32", 127, (0x80, 0x81, 0x7F), (-2.0, -127 / 64, 127 / 64)),
    # Bits 6 and 7 of an FP6 byte are ignored: 0x48, 0x88, 0xC8 are 0x08 = 1.0, 0xE8 is 0x28 = -1.0.
    Row("high_bits", "4", "fp6_e2m3", "f32", 127, (0x08, 0x48, 0x88, 0xC8, 0xE8),
        (1.0, 1.0, 1.0, 1.0, -1.0)),
    Row("high_bits", "4", "fp6_e3m2", "f32", 127, (0x0C, 0x4C, 0x8C, 0xCC, 0xEC),
        (1.0, 1.0, 1.0, 1.0, -1.0)),

    # --- overflow: IEEE, to Inf, no clamp (specification.md, 4) ---
    # 2 * 2^127 is no float32; 1.875 * 2^127 is.
    Row("overflow", "4", "fp8_e4m3", "f32", 254, (0x40, 0xC0, 0x3F), (inf, -inf, 0x7F700000)),
    Row("overflow", "4", "fp8_e4m3", "bf16", 254, (0x40, 0xC0, 0x3F), (inf, -inf, 0x7F70)),
    Row("overflow", "4", "fp8_e5m2", "f32", 254, (0x7B, 0xFB, 0x3F), (inf, -inf, 0x7F600000)),
    # -128/64 * 2^127 overflows, 127/64 * 2^127 does not.
    Row("overflow", "4", "int8", "f32", 254, (0x80, 0x81, 0x7F),
        (-inf, 0xFF7E0000, 0x7F7E0000)),
    Row("overflow", "4", "int8", "bf16", 254, (0x80, 0x81, 0x7F), (-inf, 0xFF7E, 0x7F7E)),
    # RCEIL of FLT_MAX: 256 * 2^120 = 2^128 (code 0x78, byte 247); FLOOR: 448 * 2^119 stays finite,
    # 1.75 * 2^127.
    Row("flt_max_rceil", "4", "fp8_e4m3", "f32", 247, (0x78,), (inf,)),
    Row("flt_max_floor", "4", "fp8_e4m3", "f32", 246, (0x7E,), (1.75 * 2.0**127,)),
    # RCEIL of float16's 65504: 256 * 2^8 = 65536 is beyond float16. FLOOR: 448 * 2^7 = 57344.
    Row("fp16_max_rceil", "4", "fp8_e4m3", "f16", 135, (0x78, 0xF8), (inf, -inf)),
    Row("fp16_max_rceil", "4", "fp8_e4m3", "f32", 135, (0x78, 0xF8), (65536.0, -65536.0)),
    Row("fp16_max_floor", "4", "fp8_e4m3", "f16", 134, (0x7E,), (57344.0,)),
    # 127/64 * 2^15 = 65024 fits, 128/64 * 2^15 = 65536 does not.
    Row("fp16_top", "4", "int8", "f16", 142, (0x7F, 0x80), (65024.0, -inf)),

    # --- one rounding, ties to even, subnormals kept (specification.md, 4) ---
    # bfloat16's smallest is 2^-133. At byte 0, units of it are: 2^-9 * n * 2^-127 = n / 8.
    # n = 3: 0.375 -> 0; 4: 0.5 ties to 0; 5: 0.625 -> 1; 12 (code 0x0C): 1.5 ties to 2;
    # 20 (code 0x12 = 1.25 * 2^-5): 2.5 ties to 2; -4 -> -0.
    Row("ties", "4", "fp8_e4m3", "bf16", 0, (0x03, 0x04, 0x05, 0x0C, 0x12, 0x84),
        (0x0000, 0x0000, 0x0001, 0x0002, 0x0002, 0x8000)),
    # E5M2's smallest, 2^-16 * 2^-127 = 2^-143, is a float32 subnormal: 2^6 * 2^-149.
    Row("subnormal", "4", "fp8_e5m2", "f32", 0, (0x01, 0x81), (0x00000040, 0x80000040)),
    Row("subnormal", "4", "fp8_e5m2", "bf16", 0, (0x01, 0x81), (0x0000, 0x8000)),
    # float16's smallest is 2^-24. At byte 102 (2^-25) 1.0 is half of it: ties to 0; 1.125 and 1.5
    # give 1; 3 (code 0x44): 1.5 ties to 2; 5 (0x4A): 2.5 ties to 2.
    Row("ties", "4", "fp8_e4m3", "f16", 102, (0x38, 0x39, 0x3C, 0x44, 0x4A, 0xB8),
        (0x0000, 0x0001, 0x0001, 0x0002, 0x0002, 0x8000)),
    Row("smallest", "4", "fp8_e4m3", "f16", 103, (0x38, 0xB8), (0x0001, 0x8001)),
    # INT8 with seven bits in float16's subnormals: 127/64 * 2^-18 = 127 * 2^-24 exactly; at 2^-19,
    # 63.5 ties to 64 and 125/64 (62.5) ties to 62.
    Row("ties", "4", "int8", "f16", 109, (0x7F,), (0x007F,)),
    Row("ties", "4", "int8", "f16", 108, (0x7F, 0x7D, 0x81), (0x0040, 0x003E, 0x8040)),

    # --- round trips of the quantize rows ---
    # 957, 960, 832 in FLOOR: 448, 448, 416 times 2.
    Row("957_floor", "microxcaling#4", "fp8_e4m3", "f32", 128, (0x7E, 0x7E, 0x7D),
        (896.0, 896.0, 832.0)),
    # and in RCEIL: 240, 240, 208 times 4.
    Row("957_rceil", "microxcaling#4", "fp8_e4m3", "f32", 129, (0x77, 0x77, 0x75),
        (960.0, 960.0, 832.0)),
    # 2^-130 at byte 0.
    Row("tiny", "flashinfer#4679", "fp8_e4m3", "f32", 0, (0x20, 0xA0), (2.0**-130, -(2.0**-130))),
    # Every e2m1 code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 times 2.
    Row("all_codes", "2", "fp4_e2m1", "bf16", 128, tuple(range(16)),
        (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)),
]
# fmt: on
