"""The arithmetic of a block, in Triton: scale bytes, codes, values, on the bits of float32 numbers.

Integers throughout, and float32 steps only where they are exact and meet no subnormal: so the bytes
are the contract's on every target, in Triton's interpreter (whose own float8 casts are wrong), and
where a machine flushes subnormals. ``scaled`` alone multiplies numbers as they are; it is for
NVIDIA's converts, and its multiplication keeps subnormals there.
"""

import triton
import triton.language as tl

MANTISSA_BITS = tl.constexpr(23)
EXPONENT_BIAS = tl.constexpr(127)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(0x7F800000)  # also the mask of the exponent field
QUIET_NAN = tl.constexpr(0x7FC00000)
MIN_NORMAL = tl.constexpr(0x00800000)
SUBNORMAL_EXPONENT = tl.constexpr(149)  # a subnormal is its bits, as an integer, times 2^-149
E8M0_NAN = tl.constexpr(255)
ONE = tl.constexpr(1)  # the interpreter cannot shift a plain int by a constexpr


@triton.jit
def float32_bits(x):
    """The bits as float32 of what was loaded; bfloat16 comes as int16, its bits."""
    if x.dtype == tl.int16:
        bits = x.to(tl.int32) << 16
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit
def scale_byte(amax, ADDEND: tl.constexpr, EMAX: tl.constexpr):
    """Scale bytes of blocks whose largest magnitude has the float32 bits ``amax``."""
    finite = tl.minimum(amax, INFINITY - 1)
    if EMAX == 0:
        # float32(integer) normalises; elsewhere a subnormal maximum has scale byte 0 anyway.
        normalised = amax.to(tl.float32).to(tl.int32, bitcast=True)
        normalised -= SUBNORMAL_EXPONENT << MANTISSA_BITS
        finite = tl.where(amax < MIN_NORMAL, normalised, finite)
    byte = ((finite + ADDEND) >> MANTISSA_BITS) - EMAX
    byte = tl.minimum(tl.maximum(byte, 0), 2 * EXPONENT_BIAS)
    return tl.where(amax >= INFINITY, E8M0_NAN, byte)


@triton.jit
def encode(
    bits,
    byte,
    MANTISSA: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    BIAS: tl.constexpr,
    MAX_CODE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SIGN_SHIFT: tl.constexpr,
):
    """Codes, in the low bits of int32, of elements with these float32 bits.

    ``w = |v| * 2^(BIAS - X)`` has the exponent field ``127 + f`` where the code has ``f``;
    multiplying by the power of two is a subtraction on the bits.
    """
    dropped: tl.constexpr = MANTISSA_BITS - MANTISSA
    lowest: tl.constexpr = (EXPONENT_BIAS - MANTISSA - 3) << MANTISSA_BITS  # all below rounds to zero
    is_nan = byte == E8M0_NAN
    offset = (byte - (EXPONENT_BIAS + BIAS)) << MANTISSA_BITS
    # In a block of NaN a bound of each step, one for a block, turns every element into NAN_CODE.
    low = lowest
    if NAN_CODE != 0:
        low = tl.where(is_nan, (EXPONENT_BIAS + (1 << EXPONENT_BITS)) << MANTISSA_BITS, lowest)
    w_bits = tl.maximum((bits & MAGNITUDE) - offset, low)
    w = w_bits.to(tl.float32, bitcast=True)
    # Read as if it had a leading one, a subnormal (or zero) is c/2 + m/2 where it should be m, with
    # c the smallest number that has a leading one. 2w - c is right for it, and at least w for
    # every other number.
    least = tl.maximum(MIN_NORMAL - offset, lowest).to(tl.float32, bitcast=True)
    w = tl.minimum(w, tl.fma(w, 2.0, -least))
    w_bits = w.to(tl.int32, bitcast=True)
    # One addition of a large power of two rounds to MANTISSA bits, ties to even; that of the
    # smallest normal code's binade gives the subnormal codes too.
    if EXPONENT_BITS == 1:
        ulp_bits = tl.full((), (EXPONENT_BIAS + 1) << MANTISSA_BITS, tl.int32)  # INT8: one binade
    else:
        ulp_bits = tl.maximum(w_bits & INFINITY, (EXPONENT_BIAS + 1) << MANTISSA_BITS)
    rounded = tl.fma(ulp_bits.to(tl.float32, bitcast=True), ONE << dropped, w)
    codes = rounded.to(tl.int32, bitcast=True) - ulp_bits + (ulp_bits >> dropped)
    # The sum's fraction is the significand, leading one included. What is left to subtract has no
    # bit among the low eight, where the code is.
    surplus: tl.constexpr = (dropped << MANTISSA_BITS) + ((EXPONENT_BIAS + 1) << MANTISSA)
    tl.static_assert(surplus % 256 == 0)
    codes = tl.minimum(codes, tl.where(is_nan, NAN_CODE, MAX_CODE) + surplus)
    if SIGN_SHIFT == 0:
        codes = tl.where(bits < 0, -codes, codes)
    else:
        codes |= (bits >> SIGN_SHIFT) & tl.where(is_nan, 0, 1 << (31 - SIGN_SHIFT))
    return codes


@triton.jit
def scaled(bits, byte, NAN_CODE: tl.constexpr):
    """``v * 2^-X`` as float32, for a hardware convert: every element of a block of NaN is NaN, or 0
    where the format has no NaN."""
    is_nan = byte == E8M0_NAN
    # A normal number: only INT8, which has no such convert, has scale bytes up to 254.
    factor = (2 * EXPONENT_BIAS - byte) << MANTISSA_BITS
    if NAN_CODE == 0:
        bits = tl.where(is_nan, 0, bits)
        factor = tl.where(is_nan, 0, factor)
    else:
        factor = tl.where(is_nan, QUIET_NAN, factor)
    return bits.to(tl.float32, bitcast=True) * factor.to(tl.float32, bitcast=True)


@triton.jit
def decode(
    codes,
    byte,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    MAX_CODE: tl.constexpr,
    INF_CODE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SIGN_SHIFT: tl.constexpr,
):
    """Float32 bits of the numbers with these codes (int32) and scale bytes."""
    if SIGN_SHIFT == 0:
        magnitude = tl.abs(codes)
    else:
        magnitude = codes & (MAGNITUDE >> SIGN_SHIFT)
    # The code's value, normal in float32. A subnormal code, read as if it had a leading one, is
    # c/2 + m/2 where it should be m, as in encode.
    shift: tl.constexpr = MANTISSA_BITS - MANTISSA
    w = ((magnitude << shift) + ((EXPONENT_BIAS - BIAS) << MANTISSA_BITS)).to(
        tl.float32, bitcast=True
    )
    w = tl.minimum(w, tl.fma(w, 2.0, -(2.0 ** (1 - BIAS))))
    # Where the product with the scale is subnormal or zero its bits are the product in units of
    # 2^-149: an integer, which an addition of 2^23 puts into the fraction field. Above the capped
    # scale only zero is that small.
    unit = (tl.minimum(byte, BIAS + MANTISSA) + SUBNORMAL_EXPONENT) << MANTISSA_BITS
    small = tl.fma(w, unit.to(tl.float32, bitcast=True), 2.0**MANTISSA_BITS)
    small = small.to(tl.int32, bitcast=True) - ((EXPONENT_BIAS + MANTISSA_BITS) << MANTISSA_BITS)
    # Where it is normal or overflows: add exponents, with the sum capped at infinity.
    exponent = (byte - EXPONENT_BIAS) << MANTISSA_BITS
    bits = tl.minimum(w.to(tl.int32, bitcast=True), INFINITY - tl.maximum(exponent, 0)) + exponent
    bits = tl.where(small < MIN_NORMAL, small, bits)
    if INF_CODE != 0:
        bits = tl.where(magnitude == INF_CODE, INFINITY, bits)
    bits |= (codes << SIGN_SHIFT) & ~MAGNITUDE
    last: tl.constexpr = 256 if NAN_CODE == 0 else (MAX_CODE if INF_CODE == 0 else INF_CODE)
    return tl.where(magnitude > tl.where(byte == E8M0_NAN, -1, last), QUIET_NAN, bits)


@triton.jit
def round_to(bits, dtype: tl.constexpr):
    """The float32 numbers with these bits, rounded once to ``dtype``, ties to even; int16 stands
    for bfloat16's bits."""
    if dtype == tl.float32:
        values = bits.to(tl.float32, bitcast=True)
    elif dtype == tl.int16:
        values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
    else:
        rounded = bits.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True)
        values = tl.where(bits == QUIET_NAN, 0x7E00, rounded).to(tl.int16)
        values = values.to(tl.float16, bitcast=True)
    return values
