"""The emulated kernels, in plain PyTorch ops: for every device, and for compilers to inline.

The arithmetic is on the bits of float32 numbers, in integers or in float32 steps that are exact
and never meet a subnormal, so flush-to-zero changes nothing. Big temporaries are reused in place:
in eager mode the page faults of a fresh 64 MiB buffer cost as much as ten passes over a warm one.

Shifts are spelled out because ``<<`` and ``>>`` give wrong bytes on DTensor
(pytorch/pytorch#156533).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import bitwise_left_shift as shift_left
from torch import bitwise_right_shift as shift_right

from aten_mx.formats import (
    E8M0_BIAS,
    E8M0_NAN,
    FLOAT32_BIAS,
    FLOAT32_MANTISSA_BITS,
    ElementFormat,
)
from aten_mx.layout import SwizzleType, pack_nibbles, unpack_nibbles
from aten_mx.meta import DequantizeCall, QuantizeCall, TensorSpec
from aten_mx.torch_compat import FunctionalTensor
from aten_mx.validation import describe_dequantize, describe_quantize

_MAGNITUDE = 0x7FFFFFFF
_EXPONENT = 0x7F800000  # also the bits of Inf; larger magnitudes are NaN
_MIN_NORMAL = 1 << FLOAT32_MANTISSA_BITS
_MAX_FINITE = _EXPONENT - 1
_QUIET_NAN = 0x7FC00000
# Inductor's C++ code generator (2.13) has no name for these: only an opaque op can make them.
_OPAQUE_DTYPES = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
_NAN_BITS = {torch.float32: _QUIET_NAN, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
_SUBNORMAL_EXPONENT = 149  # a float32 subnormal is its bits, read as an integer, times 2^-149


def quantize_mx(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """Emulated ``quantize_mx.format``: see :func:`aten_mx.quantize_mx` for the semantics.

    Returns:
        output, scale: dtypes and layout as ``torch.ops.aten_mx.quantize_mx.format`` gives them.

    Raises:
        TypeError, IndexError, ValueError: as the op.
    """
    call = describe_quantize(
        self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type=swizzle_type
    )
    return emulate_quantize(self, call)


def emulate_quantize(self: Tensor, call: QuantizeCall) -> tuple[Tensor, Tensor]:
    """The outputs that ``call`` describes, of either overload."""
    fmt, block_size = call.fmt, call.block_size
    # detach: autograd falls through this op, so the inner ops would record.
    values = self.detach().resolve_neg()
    compiled = type(values) is FunctionalTensor
    if compiled:
        # A trace of another input holds no resolve_neg, and a lazily negative one has no bit views.
        values = values.clone()
    values = values.movedim(call.dim, -1)
    values = values.unflatten(-1, (values.shape[-1] // block_size, block_size))
    # By their bits: Inductor (2.13) leaves out the rounding to 16 bits between two operations on
    # 16-bit floats that it fuses, and passes the float32 result on.
    bits = values.view(_BITS[values.dtype])
    negative = bits < 0
    absolute = (bits & torch.iinfo(bits.dtype).max).view(values.dtype).to(torch.float32)
    magnitude = absolute.view(torch.int32)
    if compiled and values.dtype is torch.float32:
        # A compiler fuses this, and Inductor's C++ reduces without bit views twice as fast.
        absolute = values.abs()

    scale_byte = _scale_byte(magnitude, absolute, call)
    scale = scale_byte.to(torch.uint8)
    if call.swizzle_type == SwizzleType.SWIZZLE_32_4_4:
        scale = torch.ops.aten_mx._swizzle(scale)

    scale_byte = scale_byte.unsqueeze(-1)
    if compiled and values.dtype is not torch.float32:
        scale_byte = _as_loop(scale_byte, magnitude)
    codes = _encode(magnitude, scale_byte, fmt)
    if fmt.twos_complement:
        codes.mul_(negative.to(torch.int8).mul_(-2).add_(1))
    else:
        codes.add_(negative, alpha=fmt.sign_bit)
    codes.masked_fill_(scale_byte == E8M0_NAN, fmt.nan_code)
    payload = codes.to(torch.int8 if fmt.twos_complement else torch.uint8).flatten(-2)
    if fmt.codes_per_byte == 2:
        payload = pack_nibbles(payload)
    return (
        _as_output(payload, call.output),
        _as_output(scale, call.scale),
    )


def _as_loop(scale_byte: Tensor, magnitude: Tensor) -> Tensor:
    """``scale_byte`` spread over its block as a loop of its own, for Inductor's C++ (2.13).

    In a loop that reads 16-bit floats, Inductor takes vectors of two registers, and each bit view
    then goes through memory: ``float8_e4m3fn`` from bfloat16 took 4.5 times as long. In a loop that
    reads no 16-bit floats it takes single registers. ``as_strided`` makes this a loop of its own,
    and fusion removes the buffer between the two.
    """
    spread = scale_byte.expand_as(magnitude).clone(memory_format=torch.contiguous_format)
    return spread.as_strided(spread.shape, spread.stride())


def _as_output(moved: Tensor, spec: TensorSpec) -> Tensor:
    """A copy of bytes, whose blocked dimension is the last, in the layout and dtype of ``spec``.

    In a trace the dtype view is visible wherever Inductor can generate code for it. In eager mode
    it is inside an opaque op: PyTorch's schema check (``opcheck``) fails at each visible op on
    float8.
    """
    if spec.dtype in _OPAQUE_DTYPES or type(moved) is Tensor:
        payload = moved.movedim(-1, spec.dim)
        output: Tensor = torch.ops.aten_mx._bitcast(payload, spec.dtype, spec.dim)
        return output
    return _in_layout(moved, spec.dim).view(spec.dtype)


def _in_layout(moved: Tensor, dim: int) -> Tensor:
    """A copy by the layout rule, of a tensor whose last dimension belongs at ``dim``."""
    # clone and not contiguous(), which keeps the strides it finds for sizes 0 and 1.
    return moved.clone(memory_format=torch.contiguous_format).movedim(-1, dim)


def _scale_byte(magnitude: Tensor, absolute: Tensor, call: QuantizeCall) -> Tensor:
    """Scale bytes, as int32, of blocks with the sign-cleared float32 bits ``magnitude``.

    ``absolute`` has the same numbers as floats.
    """
    if call.fmt.emax == 0:
        # Integer order of sign-cleared bits is numeric order, and NaN sorts highest.
        amax = _block_maximum(magnitude)
        # float32(integer) is exact below 2^24, and it normalises the subnormal.
        subnormal = amax.to(torch.float32).view(torch.int32) - (
            _SUBNORMAL_EXPONENT << FLOAT32_MANTISSA_BITS
        )
        finite = torch.where(amax < _MIN_NORMAL, subnormal, amax.clamp_max(_MAX_FINITE))
    else:
        # As floats, because Inductor's C++ reduces integers 12 times slower. NaN propagates, with
        # any sign and payload. Flush-to-zero can change only a subnormal maximum, whose
        # scale byte is 0 in any case.
        amax = _block_maximum(absolute).view(torch.int32) & _MAGNITUDE
        finite = amax.clamp_max(_MAX_FINITE)
    byte = call.mode.biased_exponent(finite, call.fmt).clamp(0, 2 * E8M0_BIAS)
    return torch.where(amax > _MAX_FINITE, E8M0_NAN, byte)


def _block_maximum(blocks: Tensor) -> Tensor:
    """``blocks.amax(-1)``, which PyTorch refuses for more than 64 dimensions."""
    if blocks.dim() <= 64:
        return blocks.amax(-1)
    maximum: Tensor = blocks.flatten(0, -2).amax(-1).unflatten(0, blocks.shape[:-1])
    return maximum


def _encode(magnitude: Tensor, scale: Tensor, fmt: ElementFormat) -> Tensor:
    """Codes, as int32 without sign, of float32 bits ``magnitude``, which is overwritten.

    ``w = |v| * 2^(bias - X)`` has, as a float32, the exponent field ``127 + f`` where the code's
    exponent field is ``f``. Multiplying by a power of two is a subtraction on the bits, except for
    subnormals, which ``_mend_subnormals`` corrects.
    """
    dropped_bits = FLOAT32_MANTISSA_BITS - fmt.mantissa_bits
    offset = shift_left(scale - (E8M0_BIAS + fmt.bias), FLOAT32_MANTISSA_BITS)
    # All below 2^-mantissa_bits rounds to zero. The bound keeps w a normal number.
    lowest = (FLOAT32_BIAS - fmt.mantissa_bits - 3) << FLOAT32_MANTISSA_BITS
    w_bits = magnitude.sub_(offset).clamp_min_(lowest)
    w = w_bits.view(torch.float32)
    min_normal = (_MIN_NORMAL - offset).clamp_min(lowest).view(torch.float32)
    ulp = _mend_subnormals(w, min_normal)  # its memory; the value follows

    # Round in one addition: 2^(23 - mantissa_bits) times w's power of two (at least 2, that of the
    # smallest normal code) leaves mantissa_bits of fraction, and float32 addition rounds to even.
    ulp_bits = ulp.view(torch.int32).copy_(w_bits).bitwise_and_(_EXPONENT)
    ulp_bits.clamp_min_((FLOAT32_BIAS + 1) << FLOAT32_MANTISSA_BITS)
    w.add_(ulp, alpha=2.0**dropped_bits)

    # The sum's fraction is the rounded significand, leading one included. The code is that plus
    # (f - 1) << mantissa_bits.
    codes = w_bits.sub_(ulp_bits).add_(ulp_bits.bitwise_right_shift_(dropped_bits))
    constant = (dropped_bits << FLOAT32_MANTISSA_BITS) + ((FLOAT32_BIAS + 1) << fmt.mantissa_bits)
    return codes.sub_(constant).clamp_max_(fmt.max_code)


def _mend_subnormals(w: Tensor, min_normal: Tensor | float) -> Tensor:
    """Correct numbers ``w`` whose bits were read as if every number had a leading one.

    With ``c = min_normal``, the smallest number that has a leading one, a subnormal of value
    ``2 m`` was read as ``c + m``. For it ``2 w - c`` is right; for all others ``2 w - c`` is at
    least ``w``. So the minimum of the two is right for all. ``w`` is changed in place.

    Returns:
        A buffer of the size of ``w`` for the caller to reuse.
    """
    scratch = (w - min_normal).add_(w)
    w.clamp_max_(scratch)
    return scratch


def dequantize_mx(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> Tensor:
    """Emulated ``dequantize_mx.format``: see :func:`aten_mx.dequantize_mx` for the semantics.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as the op.
    """
    call = describe_dequantize(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type
    )
    return emulate_dequantize(self, scale, call)


def emulate_dequantize(self: Tensor, scale: Tensor, call: DequantizeCall) -> Tensor:
    """The output that ``call`` describes, of either overload."""
    fmt, dim, block_size = call.fmt, call.dim, call.block_size
    bytes_dtype = torch.int8 if fmt.twos_complement else torch.uint8
    payload = torch.ops.aten_mx._bitcast(self.detach(), bytes_dtype, dim).movedim(dim, -1)
    scale_bytes = torch.ops.aten_mx._bitcast(scale.detach(), torch.uint8, dim).movedim(dim, -1)
    codes = unpack_nibbles(payload) if fmt.codes_per_byte == 2 else payload
    blocks = codes.shape[-1] // block_size
    if call.swizzle_type == SwizzleType.SWIZZLE_32_4_4:
        scale_bytes = torch.ops.aten_mx._unswizzle(scale_bytes, codes.shape[-2], blocks)
    scale_bytes = scale_bytes.unsqueeze(-1).to(torch.int32)
    bits = _decode(codes.unflatten(-1, (blocks, block_size)).to(torch.int32), scale_bytes, fmt)
    # On the rounded bits: without an operation on them, Inductor (2.13) leaves out the rounding to
    # float16 and passes the float32 number on to what it fuses with this.
    rounded = _round_to(bits, call.dtype).masked_fill_(
        scale_bytes == E8M0_NAN, _NAN_BITS[call.dtype]
    )
    return _in_layout(rounded.view(call.dtype).flatten(-2), dim)


def _decode(codes: Tensor, scale: Tensor, fmt: ElementFormat) -> Tensor:
    """Float32 bits of ``value(codes) * 2^(scale - 127)``; the caller handles byte 0xFF.

    ``codes`` (int32) are overwritten.
    """
    if fmt.twos_complement:
        negative = codes < 0
        magnitude = codes.abs_()
    else:
        codes.bitwise_and_(2 * fmt.sign_bit - 1)
        negative = codes >= fmt.sign_bit
        magnitude = codes.bitwise_and_(fmt.sign_bit - 1)
    is_inf = magnitude == fmt.inf_code if fmt.inf_code else None
    is_nan = magnitude > (fmt.inf_code or fmt.max_code) if fmt.nan_code else None

    # The value, normal in float32.
    w_bits = magnitude.bitwise_left_shift_(FLOAT32_MANTISSA_BITS - fmt.mantissa_bits)
    w_bits.add_((FLOAT32_BIAS - fmt.bias) << FLOAT32_MANTISSA_BITS)
    w = w_bits.view(torch.float32)
    scratch = _mend_subnormals(w, fmt.min_normal)

    # Where the product is subnormal or zero its bits are the product in units of 2^-149, an
    # integer. Above the capped scale only zero is that small.
    unit_exponent = scale.clamp_max(fmt.bias + fmt.mantissa_bits) - E8M0_BIAS + _SUBNORMAL_EXPONENT
    unit = shift_left(unit_exponent + FLOAT32_BIAS, FLOAT32_MANTISSA_BITS).view(torch.float32)
    small = scratch.copy_(w).mul_(unit).clamp_max_(float(_MIN_NORMAL)).to(torch.int32)
    # Where it is normal or overflows the exponents are added, with the sum capped at Inf's bits.
    exponent = shift_left(scale - E8M0_BIAS, FLOAT32_MANTISSA_BITS)
    w_bits.clamp_max_(_EXPONENT - exponent.clamp_min(0)).add_(exponent)

    bits = torch.where(small < _MIN_NORMAL, small, w_bits)
    if is_inf is not None:
        bits.masked_fill_(is_inf, _EXPONENT)
    bits.add_(negative, alpha=-_MAGNITUDE - 1)
    if is_nan is not None:
        bits.masked_fill_(is_nan, _QUIET_NAN)
    return bits


def _round_to(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits of the float32 numbers with these bits, rounded once to ``dtype``."""
    if dtype is torch.float32:
        return bits
    if dtype is torch.bfloat16:
        # Not .to(): hardware converts flush subnormals (Intel: VCVTNEPS2BF16).
        tie = shift_right(bits, 16) & 1
        return shift_right(bits + 0x7FFF + tie, 16).to(torch.int16)
    return bits.view(torch.float32).to(dtype).view(torch.int16)
