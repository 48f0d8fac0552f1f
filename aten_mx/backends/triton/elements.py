"""The arithmetic of a block, in Triton: scale bytes, codes, values, on the bits of float32 numbers.

All steps are on integers or are exact in float32. So the bytes are right on every target and in
Triton's interpreter, whose own float8 casts are wrong. Steps that may meet a subnormal are on
integers where the target ``FLUSHES``.
"""

import triton
import triton.language as tl

MANTISSA_BITS = tl.constexpr(23)
EXPONENT_BIAS = tl.constexpr(127)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(0x7F800000)  # also the mask of the exponent field
QUIET_NAN = tl.constexpr(0x7FC00000)
MIN_NORMAL = tl.constexpr(0x00800000)
FRACTION = tl.constexpr(0x007FFFFF)
HALF_MIN_NORMAL = tl.constexpr(0x00400000)
INT32_MIN = tl.constexpr(-0x80000000)
SUBNORMAL_EXPONENT = tl.constexpr(149)  # a subnormal is its bits, as an integer, times 2^-149
E8M0_NAN = tl.constexpr(255)
SCALE_MODES = range(4)
"""Those that :func:`biased_exponent` has a branch for."""


@triton.jit
def float32_bits(x):
    """The bits as float32 of what was loaded; bfloat16 comes as int16, its bits."""
    if x.dtype == tl.int16:
        bits = x.to(tl.int32) << 16
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit
def biased_exponent(
    amax, MODE: tl.constexpr, MANTISSA: tl.constexpr, MAX_CODE: tl.constexpr, EMAX: tl.constexpr
):
    """``X + 127`` before it is clamped, by the scale mode. ``amax``: float32 bits of the largest
    magnitudes. A mode that no addend expresses has its branch here."""
    unit: tl.constexpr = MIN_NORMAL >> MANTISSA  # of the last place that the format keeps
    if MODE == 0:  # floor
        addend: tl.constexpr = 0
    elif MODE == 1:  # ceil
        addend: tl.constexpr = FRACTION
    elif MODE == 2:  # even
        addend: tl.constexpr = unit >> 1
    elif MODE == 3:  # rceil
        addend: tl.constexpr = FRACTION - ((unit * MAX_CODE) & FRACTION)
    else:
        tl.static_assert(False, "no such scale mode")
    return ((amax + addend) >> MANTISSA_BITS) - EMAX


@triton.jit
def scale_byte(
    amax, MODE: tl.constexpr, MANTISSA: tl.constexpr, MAX_CODE: tl.constexpr, EMAX: tl.constexpr
):
    """Scale bytes of blocks whose largest magnitude has the float32 bits ``amax``."""
    finite = tl.minimum(amax, INFINITY - 1)
    if EMAX == 0:
        # float32(integer) normalises; elsewhere a subnormal maximum has scale byte 0 anyway.
        normalised = amax.to(tl.float32).to(tl.int32, bitcast=True)
        normalised -= SUBNORMAL_EXPONENT << MANTISSA_BITS
        finite = tl.where(amax < MIN_NORMAL, normalised, finite)
    byte = biased_exponent(finite, MODE, MANTISSA, MAX_CODE, EMAX)
    byte = tl.minimum(tl.maximum(byte, 0), 2 * EXPONENT_BIAS)
    return tl.where(amax >= INFINITY, E8M0_NAN, byte)


@triton.jit
def scaled_magnitude(bits, byte, MANTISSA: tl.constexpr, BIAS: tl.constexpr, FLUSHES: tl.constexpr):
    """``|v| * 2^-X`` as float32, exact where it matters: what becomes subnormal is far below the
    smallest code. ``FLUSHES``: the target's multiplication may flush subnormals."""
    magnitude = bits & MAGNITUDE
    if FLUSHES:
        # A subtraction on the bits, with a bound that keeps them those of a normal number. Let c
        # be the smallest number that has a leading one. A subnormal (or zero) m is read as if it
        # had one, so as c/2 + m/2. For it 2w - c is right; for all others 2w - c is at least w.
        lowest: tl.constexpr = (EXPONENT_BIAS - BIAS - MANTISSA - 3) << MANTISSA_BITS
        offset = (byte - EXPONENT_BIAS) << MANTISSA_BITS
        w = tl.maximum(magnitude - offset, lowest).to(tl.float32, bitcast=True)
        least = tl.maximum(-offset + MIN_NORMAL, lowest).to(tl.float32, bitcast=True)
        w = tl.minimum(w, tl.fma(w, 2.0, -least))
    else:
        w = magnitude.to(tl.float32, bitcast=True) * reciprocal(byte)
    return w


@triton.jit
def reciprocal(byte):
    """``2^-X`` as float32; subnormal for the largest scale byte, 254, which only INT8 has."""
    bits = (2 * EXPONENT_BIAS - byte) << MANTISSA_BITS
    return tl.where(byte == 2 * EXPONENT_BIAS, HALF_MIN_NORMAL, bits).to(tl.float32, bitcast=True)


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
    FLUSHES: tl.constexpr,
):
    """Codes, in the low eight bits of int32, of elements with these float32 bits."""
    dropped: tl.constexpr = MANTISSA_BITS - MANTISSA
    smallest: tl.constexpr = (EXPONENT_BIAS - BIAS + 1) << MANTISSA_BITS  # normal power of two
    w = scaled_magnitude(bits, byte, MANTISSA, BIAS, FLUSHES)
    # Adding w's power of two times 2^dropped rounds to MANTISSA bits, ties to even. For subnormal
    # codes it is the power of two of the smallest normal code.
    if EXPONENT_BITS == 1:
        power = tl.full((), smallest, tl.int32)  # INT8: one binade
    else:
        power = tl.maximum(w.to(tl.int32, bitcast=True) & INFINITY, smallest)
    # The sum's fraction is the significand, leading one included; adding the power's exponent makes
    # it the code plus a surplus. An even addend in units of the last place, which is no more than a
    # larger constant to multiply with, makes that a multiple of 256: so it needs no subtraction.
    excess: tl.constexpr = (dropped << MANTISSA_BITS) + ((EXPONENT_BIAS - BIAS + 1) << MANTISSA)
    addend: tl.constexpr = -excess % 256
    tl.static_assert(addend % 2 == 0)
    factor: tl.constexpr = 2.0**dropped + addend * 2.0**-MANTISSA
    rounded = tl.fma(power.to(tl.float32, bitcast=True), factor, w)
    codes = rounded.to(tl.int32, bitcast=True) - power + (power >> dropped)
    # The bound saturates. In a NaN block it is below everything, so all become NAN_CODE.
    is_nan = byte == E8M0_NAN
    bound = tl.where(is_nan, INT32_MIN + NAN_CODE, MAX_CODE + excess + addend)
    codes = tl.minimum(codes, bound)
    if SIGN_SHIFT == 0:
        codes = tl.where(bits < 0, -codes, codes)
    else:
        codes |= (bits >> SIGN_SHIFT) & tl.where(is_nan, 0, 1 << (31 - SIGN_SHIFT))
    return codes


@triton.jit
def scaled(bits, byte, NAN_CODE: tl.constexpr):
    """``v * 2^-X`` as float32, for a hardware convert: every element of a NaN block is NaN, or 0
    where the format has no NaN."""
    is_nan = byte == E8M0_NAN
    factor = reciprocal(byte)
    if NAN_CODE == 0:
        bits = tl.where(is_nan, 0, bits)
        factor = tl.where(is_nan, 0.0, factor)
    else:
        factor = tl.where(is_nan, float("nan"), factor)
    return bits.to(tl.float32, bitcast=True) * factor


@triton.jit
def decode(
    codes,
    byte,
    MANTISSA: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    BIAS: tl.constexpr,
    MAX_CODE: tl.constexpr,
    INF_CODE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SIGN_SHIFT: tl.constexpr,
    FLUSHES: tl.constexpr,
):
    """Float32 bits of the numbers with these codes (int32) and scale bytes."""
    if SIGN_SHIFT == 0:
        magnitude = tl.abs(codes)
    else:
        magnitude = codes & (MAGNITUDE >> SIGN_SHIFT)
    sign = (codes << SIGN_SHIFT) & ~MAGNITUDE
    if FLUSHES:
        bits = _product(magnitude, byte, MANTISSA, BIAS) | sign
    else:
        if SIGN_SHIFT == 0:
            # An integer k as the fraction of 1.5 * 2^23 + k, and back: k / 64.
            shifted: tl.constexpr = 0x4B400000
            value = (codes + shifted).to(tl.float32, bitcast=True)
            value = tl.fma(value, 2.0**-MANTISSA, -1.5 * 2.0 ** (MANTISSA_BITS - MANTISSA))
        else:
            # The code's fields in the place of float32's: the value is off by a power of two only.
            narrow: tl.constexpr = 8 - EXPONENT_BITS
            fields = ((codes << SIGN_SHIFT) >> narrow) & ((MAGNITUDE >> narrow) - MAGNITUDE - 1)
            value = fields.to(tl.float32, bitcast=True) * 2.0 ** (EXPONENT_BIAS - BIAS)
        scale = tl.where(byte == 0, HALF_MIN_NORMAL, byte << MANTISSA_BITS)
        bits = (value * scale.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    is_nan = byte == E8M0_NAN
    if INF_CODE != 0:
        bits = tl.where(magnitude == INF_CODE, INFINITY | sign, bits)
    if NAN_CODE != 0:
        last: tl.constexpr = MAX_CODE if INF_CODE == 0 else INF_CODE
        is_nan = magnitude > tl.where(is_nan, -1, last)
    return tl.where(is_nan, QUIET_NAN, bits)


@triton.jit
def _product(magnitude, byte, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """Float32 bits of the magnitudes of these codes times the scale, without a subnormal."""
    # The code's value, normal in float32; a subnormal code as in scaled_magnitude.
    w = (magnitude << (MANTISSA_BITS - MANTISSA)) + ((EXPONENT_BIAS - BIAS) << MANTISSA_BITS)
    w = w.to(tl.float32, bitcast=True)
    w = tl.minimum(w, tl.fma(w, 2.0, -(2.0 ** (1 - BIAS))))
    # Where the product with the scale is subnormal or zero its bits are the product in units of
    # 2^-149: an integer, which an addition of 2^23 puts into the fraction field. Above the capped
    # scale only zero is that small.
    unit = (tl.minimum(byte, BIAS + MANTISSA) + SUBNORMAL_EXPONENT) << MANTISSA_BITS
    small = tl.fma(w, unit.to(tl.float32, bitcast=True), 2.0**MANTISSA_BITS)
    small = small.to(tl.int32, bitcast=True) - ((EXPONENT_BIAS + MANTISSA_BITS) << MANTISSA_BITS)
    # Where it is normal or overflows: add exponents, with the sum capped at infinity.
    exponent = (byte - EXPONENT_BIAS) << MANTISSA_BITS
    bits = tl.minimum(w.to(tl.int32, bitcast=True), -tl.maximum(exponent, 0) + INFINITY) + exponent
    return tl.where(small < MIN_NORMAL, small, bits)


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
