"""The rules that every call must keep, in the order of the specification's error table.

The first fault wins. Messages hold the received value. They are built from lists and plain numbers,
so that C++ can print the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from aten_mx.formats import FORMAT_OF_DTYPE, FORMATS, ElementFormat
from aten_mx.layout import SwizzleType, unknown_swizzle_message
from aten_mx.meta import (
    DequantizeCall,
    QuantizeCall,
    dequantize_call,
    quantize_call,
    scale_shape,
    with_size,
)
from aten_mx.scaling import ScaleCalculationMode, unknown_mode_message
from aten_mx.torch_compat import check_value

REAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SWIZZLE_BLOCK_SIZE = 32
_MAX_BYTES = 2**63 - 1
_MODES = frozenset(map(int, ScaleCalculationMode))
_SWIZZLES = frozenset(map(int, SwizzleType))

Shapes = Sequence[Sequence[int]]
"""The tensors' shapes where these differ from their own: those of one example under vmap."""


def check_quantize(
    self: Tensor,
    dim: int,
    block_size: int,
    element: torch.dtype | str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
    shapes: Shapes | None = None,
) -> None:
    """Validate the arguments of either ``quantize_mx`` overload.

    Args:
        element: the ``dtype`` of the base overload, or the ``elem_format`` of ``.format``.

    Raises:
        TypeError, IndexError, ValueError: as listed in specification.md, 6.
    """
    op = "quantize_mx"
    _check_dense(op, "self", self)
    if self.dtype not in REAL_DTYPES:
        _fail(TypeError, f"{op}: self must be {_names(REAL_DTYPES)}, got {self.dtype}")
    shape = list(shapes[0] if shapes else self.shape)
    dim = _check_dim(op, dim, shape)
    fmt = _check_element(op, element)
    if scale_calculation_mode not in _MODES:
        _fail(ValueError, f"{op}: {unknown_mode_message(scale_calculation_mode)}")
    _check_swizzle_type(op, swizzle_type)
    _check_block_size(op, block_size, fmt)
    _check_multiple(op, shape, dim, block_size, shape[dim])
    _check_swizzle(op, swizzle_type, shape, dim, block_size)
    _check_bytes(op, "output", self, with_size(shape, dim, shape[dim] // fmt.codes_per_byte))
    _check_bytes(op, "scale", self, scale_shape(shape, dim, block_size, swizzle_type))


def describe_quantize(self: Tensor, *args: Any, swizzle_type: int = 0) -> QuantizeCall:
    """Validate a call, arguments as :func:`check_quantize` takes them, and describe it."""
    check_quantize(self, *args, swizzle_type=swizzle_type)
    return quantize_call(self, *args, swizzle_type=swizzle_type)


def check_dequantize(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str | None,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
    shapes: Shapes | None = None,
) -> None:
    """Validate the arguments of either ``dequantize_mx`` overload.

    Args:
        elem_format: ``None`` for the base overload, whose format is the payload's dtype.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as listed in specification.md, 6.
    """
    op = "dequantize_mx"
    _check_dense(op, "self", self)
    shape = list(shapes[0] if shapes else self.shape)
    dim = _check_dim(op, dim, shape)
    fmt = (
        FORMAT_OF_DTYPE.get(self.dtype) if elem_format is None else _check_element(op, elem_format)
    )
    if dtype not in REAL_DTYPES:
        _fail(TypeError, f"{op}: dtype must be {_names(REAL_DTYPES)}, got {dtype}")
    _check_swizzle_type(op, swizzle_type)
    _check_block_size(op, block_size, fmt)
    if fmt is not None:  # without a format the payload's dtype is at fault: checked below
        codes = shape[dim] * fmt.codes_per_byte
        _check_bytes(op, "output", self, [codes])  # here, because C++ cannot hold a larger size
        _check_multiple(op, shape, dim, block_size, codes)
        shape = with_size(shape, dim, codes)
    _check_swizzle(op, swizzle_type, shape, dim, block_size)
    _check_payload_dtype(op, self.dtype, fmt, elem_format)
    _check_scale_dtype(op, scale)
    received = list(shapes[1] if shapes else scale.shape)
    expected = scale_shape(shape, dim, block_size, swizzle_type)
    _check_scale_shape(op, received, expected, shape, block_size)
    if scale.device != self.device:
        _fail(
            RuntimeError,
            f"{op}: self and scale must be on one device, got {self.device} and {scale.device}",
        )
    _check_bytes(op, "output", self, [*shape, dtype.itemsize])


def describe_dequantize(
    self: Tensor, scale: Tensor, *args: Any, swizzle_type: int = 0
) -> DequantizeCall:
    """Validate a call, arguments as :func:`check_dequantize` takes them, and describe it."""
    check_dequantize(self, scale, *args, swizzle_type=swizzle_type)
    return dequantize_call(self, scale, *args, swizzle_type=swizzle_type)


def _check_dense(op: str, name: str, tensor: Tensor | None) -> None:
    kind = None
    if tensor is None:  # the dispatcher lets it through, as an undefined tensor
        kind = "None"
    elif tensor.is_nested:
        kind = "a nested tensor"
    elif tensor.layout is not torch.strided:
        kind = f"layout {tensor.layout}"
    elif tensor.is_quantized:
        kind = f"a quantized tensor of dtype {tensor.dtype}"
    if kind is not None:
        _fail(TypeError, f"{op}: {name} must be a dense strided tensor, got {kind}")


def _check_dim(op: str, dim: int, shape: list[int]) -> int:
    rank = len(shape)
    if rank == 0:
        _fail(IndexError, f"{op}: self must have at least one dimension, got shape []")
    if not -rank <= dim < rank:
        _fail(
            IndexError,
            f"{op}: dim must be in [{-rank}, {rank - 1}] for a tensor of rank {rank}, got {dim}",
        )
    return dim % rank


def _check_element(op: str, element: torch.dtype | str) -> ElementFormat:
    if isinstance(element, str):
        if element not in FORMATS:
            _fail(
                ValueError, f"{op}: elem_format must be one of {', '.join(FORMATS)}, got {element}"
            )
        return FORMATS[element]
    if element not in FORMAT_OF_DTYPE:
        _fail(TypeError, f"{op}: dtype must be {_names(FORMAT_OF_DTYPE)}, got {element}")
    return FORMAT_OF_DTYPE[element]


def _check_swizzle_type(op: str, swizzle_type: int) -> None:
    if swizzle_type not in _SWIZZLES:
        _fail(ValueError, f"{op}: {unknown_swizzle_message(swizzle_type)}")


def _check_block_size(op: str, block_size: int, fmt: ElementFormat | None) -> None:
    if block_size < 1:
        _fail(ValueError, f"{op}: block_size must be at least 1, got {block_size}")
    if fmt is not None and block_size % fmt.codes_per_byte:
        _fail(
            ValueError,
            f"{op}: block_size must be even for {fmt.name} (two codes per byte), got {block_size}",
        )


def _check_multiple(op: str, shape: list[int], dim: int, block_size: int, size: int) -> None:
    _require(
        size % block_size == 0,
        lambda: (
            f"{op}: size {size} of dim {dim} must be a multiple of block_size {block_size}, "
            f"got shape {shape}"
        ),
    )


def _check_swizzle(op: str, swizzle_type: int, shape: list[int], dim: int, block_size: int) -> None:
    if swizzle_type == SwizzleType.NO_SWIZZLE:
        return
    rank = len(shape)
    if rank < 2:
        _fail(ValueError, f"{op}: swizzle_type {swizzle_type} needs rank 2 or more, got {rank}")
    if dim != rank - 1:
        _fail(ValueError, f"{op}: swizzle_type {swizzle_type} needs the last dim, got dim {dim}")
    if block_size != SWIZZLE_BLOCK_SIZE:
        _fail(
            ValueError,
            f"{op}: swizzle_type {swizzle_type} needs block_size {SWIZZLE_BLOCK_SIZE}, "
            f"got {block_size}",
        )


def _check_payload_dtype(
    op: str, dtype: torch.dtype, fmt: ElementFormat | None, elem_format: str | None
) -> None:
    if fmt is None:
        hint = "; raw bytes need elem_format (dequantize_mx.format)" if dtype is torch.uint8 else ""
        _fail(TypeError, f"{op}: self must be {_names(FORMAT_OF_DTYPE)}, got {dtype}{hint}")
    accepted = [fmt.payload_dtype]
    if fmt.dtype is not None and fmt.dtype is not fmt.payload_dtype:
        accepted.append(fmt.dtype)
    if elem_format is not None and dtype not in accepted:
        _fail(TypeError, f"{op}: self must be {_names(accepted)} for {elem_format}, got {dtype}")


def _check_scale_dtype(op: str, scale: Tensor) -> None:
    _check_dense(op, "scale", scale)
    if scale.dtype is not torch.float8_e8m0fnu:
        is_bytes = scale.dtype is torch.uint8
        hint = "; view it: scale.view(torch.float8_e8m0fnu)" if is_bytes else ""
        _fail(TypeError, f"{op}: scale must be torch.float8_e8m0fnu, got {scale.dtype}{hint}")


def _check_scale_shape(
    op: str, received: list[int], expected: list[int], shape: list[int], block_size: int
) -> None:
    def message() -> str:
        return (
            f"{op}: scale must have shape {expected} for values of shape {shape} "
            f"and block_size {block_size}, got {received}"
        )

    if len(received) != len(expected):
        _fail(ValueError, message())
    for got, want in zip(received, expected, strict=True):
        _require(got == want, message)


def _check_bytes(op: str, name: str, self: Tensor, factors: Sequence[int]) -> None:
    """Refuse a result whose bytes, the product of ``factors``, PyTorch cannot count."""
    if any(isinstance(factor, torch.SymInt) for factor in factors):
        return  # a guard or an assertion for this would burden every graph
    if math.prod(factors) > _MAX_BYTES:
        _fail(
            ValueError,
            f"{op}: the {name} for self of shape {list(self.shape)} "
            "would have more than 2^63 - 1 bytes",
        )


def _names(dtypes: Sequence[torch.dtype] | dict[torch.dtype, ElementFormat]) -> str:
    *head, last = map(str, dtypes)
    return f"{', '.join(head)} or {last}" if head else last


def _require(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
    # A plain bool costs 0.1 us, check_value 4 us or more; only a symbolic size needs the
    # latter, which turns the condition into a guard or a runtime assertion.
    if isinstance(condition, torch.SymBool):
        check_value(condition, message)
    elif not condition:
        _fail(ValueError, message())


def _fail(error: type[Exception], message: str) -> NoReturn:
    raise error(message)
