"""Independent oracle of ``quantize_mx`` and ``dequantize_mx`` in numpy.

It shares no code and no method with the package. Kernels work on the bits of float32; the oracle
works on real numbers: every input, scaled element and product is exact in float64 (at most 24
significant bits, exponents within [-300, 300]), elements are found by search in the sorted list of
the format's values, and the scale rules are comparisons of exact numbers, as they are worded.

Arrays in, arrays out: numpy integers for bits, codes and scale bytes, float64 for values.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

FLOOR, CEIL, EVEN, RCEIL = range(4)
MODES = {"floor": FLOOR, "ceil": CEIL, "even": EVEN, "rceil": RCEIL}

E8M0_BIAS = 127
E8M0_NAN = 0xFF


# --- element formats: specification.md, 2 ---


@dataclass(frozen=True)
class Format:
    """An element format as the OCP document gives it: fields, bias, and where finite codes end."""

    name: str
    exponent_bits: int  # 0: a two's complement integer
    mantissa_bits: int  # of the significand, for INT8 the bits below the leading one
    bias: int
    largest_code: int  # code of the largest finite value; codes above it are Inf or NaN
    infinity_code: int | None
    nan_code: int  # what every element of a NaN block holds

    @property
    def bits(self) -> int:
        """Bits of a code, sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits if self.exponent_bits else 8

    @cached_property
    def magnitudes(self) -> Array:
        """All finite magnitudes; the index is the code without its sign."""
        if not self.exponent_bits:
            return np.arange(self.largest_code + 1) / 64.0
        code = np.arange(self.largest_code + 1)
        field, fraction = np.divmod(code, 1 << self.mantissa_bits)
        subnormal = np.ldexp(fraction, 1 - self.bias - self.mantissa_bits)
        significand = (1 << self.mantissa_bits) + fraction
        normal = np.ldexp(significand, field - self.bias - self.mantissa_bits)
        return np.where(field == 0, subnormal, normal)

    @property
    def max_normal(self) -> float:
        """The largest finite value."""
        return float(self.magnitudes[-1])

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return int(np.frexp(self.max_normal)[1]) - 1

    @cached_property
    def values(self) -> Array:
        """The value of each of the 256 bytes; bits above the code's width are ignored."""
        byte = np.arange(256)
        if not self.exponent_bits:
            return np.where(byte < 128, byte, byte - 256) / 64.0
        sign_bit = 1 << (self.bits - 1)
        magnitude_code = byte & (sign_bit - 1)
        finite = magnitude_code <= self.largest_code
        value = np.where(
            finite, self.magnitudes[np.minimum(magnitude_code, self.largest_code)], np.nan
        )
        if self.infinity_code is not None:
            value[magnitude_code == self.infinity_code] = np.inf
        return np.where(byte & sign_bit, -value, value)

    def nearest(self, value: Array) -> Array:
        """Code of the value nearest to each finite ``value``: ties to the even code, saturating."""
        magnitude = np.abs(value)
        midpoints = (self.magnitudes[:-1] + self.magnitudes[1:]) / 2
        code = np.searchsorted(midpoints, magnitude, side="left")  # a tie stays below
        at_tie = magnitude == midpoints[np.minimum(code, len(midpoints) - 1)]
        code += at_tie & (code % 2 == 1)
        negative = np.signbit(value)
        if not self.exponent_bits:
            return np.where(negative, -code, code).astype(np.int8).view(np.uint8)
        return (code + (negative.astype(np.int64) << (self.bits - 1))).astype(np.uint8)


FORMATS = {
    row.name: row
    for row in (
        #      name        e  m  bias  largest  Inf   NaN block
        Format("fp8_e4m3", 4, 3, 7, 0x7E, None, 0x7F),
        Format("fp8_e5m2", 5, 2, 15, 0x7B, 0x7C, 0x7F),
        Format("fp6_e2m3", 2, 3, 1, 0x1F, None, 0),
        Format("fp6_e3m2", 3, 2, 3, 0x1F, None, 0),
        Format("fp4_e2m1", 2, 1, 1, 0x07, None, 0),
        Format("int8", 0, 6, 0, 0x7F, None, 0),
    )
}


# --- IEEE-like floats to real numbers and back ------------------------------------------------


@dataclass(frozen=True)
class Float:
    """Layout of an input or output dtype."""

    mantissa_bits: int
    emin: int  # exponent of the smallest normal number
    infinity: int  # bits of +Inf; the sign is the bit above
    quiet_nan: int
    storage: type[np.unsignedinteger]


FLOATS = {
    "f32": Float(23, -126, 0x7F800000, 0x7FC00000, np.uint32),
    "bf16": Float(7, -126, 0x7F80, 0x7FC0, np.uint16),
    "f16": Float(10, -14, 0x7C00, 0x7E00, np.uint16),
}


def decode_float(bits: Array, dtype: str) -> Array:
    """Bit patterns of ``dtype`` as float64, from their fields: no cast, so no flush to zero."""
    layout = FLOATS[dtype]
    sign_bit = layout.infinity + (1 << layout.mantissa_bits)
    bits = bits.astype(np.int64)
    magnitude_bits = bits & (sign_bit - 1)
    field, fraction = np.divmod(magnitude_bits, 1 << layout.mantissa_bits)
    significand = fraction + ((field > 0).astype(np.int64) << layout.mantissa_bits)
    exponent = np.maximum(field, 1) - 1 + layout.emin - layout.mantissa_bits
    value = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    value[magnitude_bits == layout.infinity] = np.inf
    value[magnitude_bits > layout.infinity] = np.nan
    return np.where(bits & sign_bit, -value, value)


def encode_float(value: Array, dtype: str) -> Array:
    """Bits of ``value`` rounded once to ``dtype``, ties to even; any NaN is the positive quiet."""
    layout = FLOATS[dtype]
    finite = np.isfinite(value)
    magnitude = np.where(finite, np.abs(value), 0.0)
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, layout.emin)
    exponent = np.where(magnitude == 0, layout.emin, exponent)
    steps = np.rint(np.ldexp(magnitude, layout.mantissa_bits - exponent)).astype(np.int64)
    # The leading one of a normal number, and a carry, raise the exponent field.
    bits = steps + ((exponent - layout.emin).astype(np.int64) << layout.mantissa_bits)
    bits = np.where(finite, np.minimum(bits, layout.infinity), layout.infinity)
    sign_bit = layout.infinity + (1 << layout.mantissa_bits)
    bits = np.where(np.signbit(value), bits + sign_bit, bits)
    return np.where(np.isnan(value), layout.quiet_nan, bits).astype(layout.storage)


# --- quantization: specification.md, 3 ---


def shared_exponent(amax: Array, fmt: Format, mode: int) -> Array:
    """``X`` before clamping, for positive finite ``amax``."""
    half_significand, exponent = np.frexp(amax)  # amax = half_significand * 2^exponent, in [1/2, 1)
    floor_log2 = exponent - 1
    if mode == FLOOR:
        return floor_log2 - fmt.emax
    if mode == CEIL:
        return floor_log2 + (np.ldexp(1.0, floor_log2) < amax) - fmt.emax
    if mode == EVEN:
        steps = np.floor(np.ldexp(half_significand, 1 + fmt.mantissa_bits) + 0.5)
        carried = np.frexp(np.ldexp(steps, floor_log2 - fmt.mantissa_bits))[1] - 1
        return carried - fmt.emax
    if mode == RCEIL:  # the smallest X with amax <= max_normal * 2^X
        lower = floor_log2 - fmt.emax
        return lower + (amax > np.ldexp(fmt.max_normal, lower))
    raise ValueError(mode)


def quantize_values(
    value: Array, block_size: int, fmt_name: str, mode: int, axis: int = -1
) -> tuple[Array, Array]:
    """Codes (uint8, one each) and scale bytes of float64 ``value`` in blocks along ``axis``."""
    fmt = FORMATS[fmt_name]
    value = np.moveaxis(value, axis, -1)
    blocks = value.reshape(*value.shape[:-1], value.shape[-1] // block_size, block_size)
    is_nan = ~np.isfinite(blocks).all(-1)
    blocks = np.where(is_nan[..., None], 0.0, blocks)
    amax = np.abs(blocks).max(-1) if blocks.size else np.zeros(blocks.shape[:-1])

    # A zero block has scale byte 0; 2^-300 stands in for it, below every clamp.
    exponent = shared_exponent(np.where(amax == 0, 2.0**-300, amax), fmt, mode)
    exponent = np.clip(exponent, -E8M0_BIAS, E8M0_BIAS)
    scale = np.where(is_nan, E8M0_NAN, exponent + E8M0_BIAS).astype(np.uint8)
    code = fmt.nearest(np.ldexp(blocks, -exponent[..., None]))
    code = np.where(is_nan[..., None], np.uint8(fmt.nan_code), code)
    return np.moveaxis(code.reshape(value.shape), -1, axis), np.moveaxis(scale, -1, axis)


def quantize(
    bits: Array, block_size: int, fmt_name: str, mode: int, axis: int = -1
) -> tuple[Array, Array]:
    """Codes (uint8, one each) and scale bytes of float32 bit patterns in blocks along ``axis``."""
    return quantize_values(decode_float(bits, "f32"), block_size, fmt_name, mode, axis)


# --- dequantization: specification.md, 4 ---


def dequantize(codes: Array, scale: Array, block_size: int, fmt_name: str, axis: int = -1) -> Array:
    """Exact products as float64, with NaN and Inf; ``codes`` are unpacked."""
    per_element = np.repeat(scale.astype(np.int32), block_size, axis)
    product = np.ldexp(FORMATS[fmt_name].values[codes], per_element - E8M0_BIAS)
    return np.where(per_element == E8M0_NAN, np.nan, product)


def dequantize_bits(
    codes: Array, scale: Array, block_size: int, fmt_name: str, dtype: str, axis: int = -1
) -> Array:
    """Bits of the result: the product overflows in float32, then is rounded once to ``dtype``."""
    product = encode_float(dequantize(codes, scale, block_size, fmt_name, axis), "f32")
    return encode_float(decode_float(product, "f32"), dtype)


# --- layout: specification.md, 5 ---


def pack_nibbles(codes: Array, axis: int = -1) -> Array:
    """Two codes per byte along ``axis``, the even element in the low nibble."""
    codes = np.moveaxis(codes, axis, -1)
    packed = codes[..., 0::2] + 16 * codes[..., 1::2]
    return np.moveaxis(packed.astype(np.uint8), -1, axis)


def swizzled_offsets(rows: int, columns: int) -> Array:
    """Where each element of a scale matrix lies in its run of 128x4 tiles."""
    row, column = np.indices((rows, columns))
    tile = row // 128 * -(-columns // 4) + column // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def swizzle_scale(scale: Array, padding: int = 0) -> Array:
    """Scale bytes ``(*leading, rows, columns)`` in the 32x4x4 layout; the rest is ``padding``."""
    *leading, rows, columns = scale.shape
    shape = (*leading, 32 * -(-rows // 128), 16 * -(-columns // 4))
    flat = np.full((*leading, shape[-2] * shape[-1]), padding, np.uint8)
    flat[..., swizzled_offsets(rows, columns)] = scale
    return flat.reshape(shape)
