"""The ops' schemas and their fake implementations, registered in that order.

The order matters: PyTorch refuses a fake for an op that already has a CompositeImplicitAutograd
kernel, so ``aten_mx.dispatch`` (the composite) is imported after this module.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aten_mx.layout import swizzle, swizzled_shape, unswizzle
from aten_mx.meta import TensorSpec, describe_dequantize, describe_quantize

LIB = torch.library.Library("aten_mx", "DEF")

# These four never change: a C++ kernel must match its schema argument for argument, so an added
# keyword would break every backend. New behaviour comes as a new overload.
SCHEMAS = (
    "quantize_mx(Tensor self, int dim, int block_size, ScalarType dtype, "
    "int scale_calculation_mode=0) -> (Tensor output, Tensor scale)",
    "quantize_mx.format(Tensor self, int dim, int block_size, str elem_format, "
    "int scale_calculation_mode=0, *, int swizzle_type=0) -> (Tensor output, Tensor scale)",
    "dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, ScalarType dtype) -> Tensor",
    "dequantize_mx.format(Tensor self, Tensor scale, int dim, int block_size, str elem_format, "
    "ScalarType dtype, *, int swizzle_type=0) -> Tensor",
)
# Internal, and opaque to compilers: Inductor's C++ code generator (2.13) has no float8_e8m0fnu and
# no float4_e2m1fn_x2, so the composite leaves the last dtype view to this op.
_BITCAST_SCHEMA = "_bitcast(Tensor self, ScalarType dtype, int dim) -> Tensor"

# Internal, and opaque to tracing: reshaping to tiles asks of symbolic sizes whether they are 1 or
# divide each other, and the answers would tie an exported program to the sizes it was traced with.
_SWIZZLE_SCHEMAS = (
    "_swizzle(Tensor scale) -> Tensor",
    "_unswizzle(Tensor swizzled, SymInt rows, SymInt columns) -> Tensor",
)

# Internal, and opaque to tracing: stands in a graph for a call that a device's own kernel is to
# answer, where the tracer would inline the composite all the same (AOTInductor; see dispatch.py).
_KERNEL_SCHEMAS = (
    "_quantize_mx(Tensor self, int dim, int block_size, str elem_format, "
    "int scale_calculation_mode, int swizzle_type) -> (Tensor output, Tensor scale)",
    "_dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, str elem_format, "
    "ScalarType dtype, int swizzle_type) -> Tensor",
)

for _schema in (*SCHEMAS, _BITCAST_SCHEMA, *_SWIZZLE_SCHEMAS, *_KERNEL_SCHEMAS):
    LIB.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def quantize_mx_fake(
    self: Tensor, dim: int, block_size: int, dtype: torch.dtype, scale_calculation_mode: int = 0
) -> tuple[Tensor, Tensor]:
    """Outputs of the base overload without values."""
    call = describe_quantize(self, dim, block_size, dtype, scale_calculation_mode)
    return call.output.empty(self.device), call.scale.empty(self.device)


def quantize_mx_format_fake(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """Outputs of ``.format`` without values."""
    call = describe_quantize(
        self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type=swizzle_type
    )
    return call.output.empty(self.device), call.scale.empty(self.device)


def dequantize_mx_fake(
    self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype
) -> Tensor:
    """Output of the base overload without values."""
    return describe_dequantize(self, scale, dim, block_size, None, dtype).output.empty(self.device)


def dequantize_mx_format_fake(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> Tensor:
    """Output of ``.format`` without values."""
    call = describe_dequantize(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type
    )
    return call.output.empty(self.device)


def _bitcast_fake(self: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    return TensorSpec(list(self.shape), dim % self.dim(), dtype).empty(self.device)


def _bitcast(self: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """A copy of ``self``'s bytes as ``dtype``, laid out by the layout rule of ``dim``."""
    copy = TensorSpec(list(self.shape), dim % self.dim(), self.dtype).empty(self.device)
    return copy.copy_(self).view(dtype)


def _swizzle_fake(scale: Tensor) -> Tensor:
    return scale.new_empty(swizzled_shape(scale.shape))


def _unswizzle_fake(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    return swizzled.new_empty([*swizzled.shape[:-2], rows, columns])


def _quantize_mx(
    self: Tensor, dim: int, block_size: int, elem_format: str, mode: int, swizzle_type: int
) -> tuple[Tensor, Tensor]:
    op = torch.ops.aten_mx.quantize_mx.format
    outputs: tuple[Tensor, Tensor] = op(
        self, dim, block_size, elem_format, mode, swizzle_type=swizzle_type
    )
    return outputs


def _quantize_mx_fake(
    self: Tensor, dim: int, block_size: int, elem_format: str, mode: int, swizzle_type: int
) -> tuple[Tensor, Tensor]:
    return quantize_mx_format_fake(
        self, dim, block_size, elem_format, mode, swizzle_type=swizzle_type
    )


def _dequantize_mx(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    swizzle_type: int,
) -> Tensor:
    op = torch.ops.aten_mx.dequantize_mx.format
    output: Tensor = op(self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type)
    return output


def _dequantize_mx_fake(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    swizzle_type: int,
) -> Tensor:
    return dequantize_mx_format_fake(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type
    )


for _name, _kernel in (
    ("_bitcast", _bitcast),
    ("_swizzle", swizzle),
    ("_unswizzle", unswizzle),
    ("_quantize_mx", _quantize_mx),
    ("_dequantize_mx", _dequantize_mx),
):
    LIB.impl(_name, _kernel, "CompositeExplicitAutograd")
    LIB.impl(_name, torch.library.fallthrough_kernel, "Autograd")

for _name, _fake in (
    ("quantize_mx", quantize_mx_fake),
    ("quantize_mx.format", quantize_mx_format_fake),
    ("dequantize_mx", dequantize_mx_fake),
    ("dequantize_mx.format", dequantize_mx_format_fake),
    ("_bitcast", _bitcast_fake),
    ("_swizzle", _swizzle_fake),
    ("_unswizzle", _unswizzle_fake),
    ("_quantize_mx", _quantize_mx_fake),
    ("_dequantize_mx", _dequantize_mx_fake),
):
    torch.library.register_fake(f"aten_mx::{_name}", _fake, lib=LIB)
