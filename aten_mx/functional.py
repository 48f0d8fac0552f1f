"""The documented front doors: typed functions over ``torch.ops.aten_mx``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import (
    handle_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
)

from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.layout import SwizzleType
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.validation import check_dequantize, check_quantize


def quantize_mx(
    input: Tensor,
    dim: int = -1,
    block_size: int = 32,
    dtype: torch.dtype | str = torch.float8_e4m3fn,
    scale_calculation_mode: ScaleCalculationMode | int | str | Any = "floor",
    *,
    swizzle_type: SwizzleType | int | Any = SwizzleType.NO_SWIZZLE,
) -> tuple[Tensor, Tensor]:
    r"""Quantize ``input`` to a Microscaling format: one power-of-two scale per block along ``dim``.

    For a block :math:`v` with shared exponent :math:`X` (see :class:`ScaleCalculationMode`), each
    element is :math:`v_i \cdot 2^{-X}`, rounded once to the element format, ties to even,
    subnormals included, and then saturated. Source: OCP Microscaling Formats (MX) v1.0,
    section 6.3; pytorch/rfcs#86.

    Args:
        input: float32, bfloat16 or float16, shape ``(*, K, *)`` with ``K = input.shape[dim]``,
            any strides, any device.
        dim: the blocked dimension; negative counts from the end.
        block_size: elements that share a scale; divides ``K``, even for FP4. OCP's value is 32.
        dtype: the element format: ``torch.float8_e4m3fn``, ``torch.float8_e5m2``,
            ``torch.float4_e2m1fn_x2``, ``torch.int8``, or one of the strings ``"fp8_e4m3"``,
            ``"fp8_e5m2"``, ``"fp6_e2m3"``, ``"fp6_e3m2"``, ``"fp4_e2m1"``, ``"int8"``. The strings
            give FP6 and FP4 as raw ``torch.uint8`` bytes.
        scale_calculation_mode: a :class:`ScaleCalculationMode`, its int, its name in lower case, or
            an enum member whose ``value`` is that name.
        swizzle_type: ``1`` (:attr:`SwizzleType.SWIZZLE_32_4_4`) lays the scale out in 128x4 tiles
            padded with byte 0; needs rank 2 or more, the last ``dim`` and blocks of 32.

    Returns:
        output: payload of the shape of ``input``; with two codes per byte (FP4) ``K / 2`` at
            ``dim``, the even element in the low nibble. FP6: one code per byte, in the low bits.
        scale: ``torch.float8_e8m0fnu`` of the shape of ``input`` with ``K / block_size`` at
            ``dim``; swizzled: ``(*leading, 32 * ceil(rows / 128), 16 * ceil(K / 128))``. Byte ``b``
            means ``2^(b - 127)``; byte 0 is ``2^-127``.

        Both are dense with ``dim`` innermost (stride 1) and the other dimensions in their order,
        whatever the strides of ``input``: for ``dim=-1`` plain contiguous.

    Raises:
        TypeError: ``input`` isn't dense and strided or has another dtype (float64 too: it would
            round twice); ``dtype`` isn't an element format.
        IndexError: rank 0, or ``dim`` out of range.
        ValueError: unknown format string, mode or swizzle; ``block_size`` below 1, odd for FP4, or
            not a divisor of ``K``; a swizzle that doesn't fit.

    Special values: a block with NaN or Inf gets scale byte ``0xFF`` and NaN codes (``0x7F`` in FP8,
    0 elsewhere: the scale alone carries it). A zero block gets scale byte 0. Zeros keep their sign,
    also elements that round to zero, except in INT8, which has one zero and never emits -128.

    Not differentiable: outputs never require grad, and ``torch.func.grad`` and ``jvp`` see a
    constant. The bytes are the same on every backend, also when it flushes subnormals.

    Example::

        >>> import torch, aten_mx
        >>> x = torch.tensor([[1.1, 2.0, 448.0, -0.0]])
        >>> output, scale = aten_mx.quantize_mx(x, block_size=4)
        >>> output
        tensor([[  1.1250,   2.0000, 448.0000,  -0.0000]], dtype=torch.float8_e4m3fn)
        >>> scale
        tensor([[1.]], dtype=torch.float8_e8m0fnu)
        >>> output, scale = aten_mx.quantize_mx(torch.ones(64, 3), dim=0, dtype="fp4_e2m1")
        >>> output.shape, output.stride(), scale.shape
        (torch.Size([32, 3]), (1, 32), torch.Size([2, 3]))
    """
    op = torch.ops.aten_mx.quantize_mx
    mode = _int_or_text(scale_calculation_mode, ScaleCalculationMode.parse)
    swizzle = _int_or_text(swizzle_type, SwizzleType.parse)
    if has_torch_function_unary(input):  # torch.fx.symbolic_trace: the call is one node
        arguments = (input, dim, block_size, dtype, mode)
        return handle_torch_function(quantize_mx, (input,), *arguments, swizzle_type=swizzle)
    if not (isinstance(mode, int) and isinstance(swizzle, int)):
        # In the specification's order (6): an earlier fault wins, and the text is the op's.
        check_quantize(input, dim, block_size, dtype, mode, swizzle_type=swizzle)
    if isinstance(dtype, str):
        return op.format(input, dim, block_size, dtype, mode, swizzle_type=swizzle)  # type: ignore[no-any-return]
    fmt = _format_of(dtype)
    if swizzle == 0 or fmt is None:  # without a format the op raises
        return op.default(input, dim, block_size, dtype, mode)  # type: ignore[no-any-return]
    output, scale = op.format(input, dim, block_size, fmt.name, mode, swizzle_type=swizzle)
    if output.dtype is not dtype:
        output = torch.ops.aten_mx._bitcast(output, dtype, dim)
    return output, scale


def dequantize_mx(
    input: Tensor,
    scale: Tensor,
    dim: int = -1,
    block_size: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    elem_format: str | None = None,
    swizzle_type: SwizzleType | int | Any = SwizzleType.NO_SWIZZLE,
) -> Tensor:
    r"""Turn a Microscaling payload and its scale back into ordinary numbers.

    Each element is ``value(code) * 2^(b - 127)`` with ``b`` its block's scale byte: exact in
    float32 up to overflow to ±Inf, then rounded once to ``dtype``, ties to even. Source: OCP
    Microscaling Formats (MX) v1.0, section 5.1.

    Args:
        input: payload as :func:`quantize_mx` gives it, any strides.
        scale: ``torch.float8_e8m0fnu``, ``K / block_size`` at ``dim``, or swizzled; any strides,
            on the device of ``input``.
        dim: the blocked dimension; negative counts from the end.
        block_size: elements that share a scale.
        dtype: of the result: float32, bfloat16 or float16.
        elem_format: the element format's string; needed for raw bytes (``torch.uint8``), whose
            dtype does not tell the format. ``None``: the format that the payload's dtype names.
        swizzle_type: the layout of ``scale``. Its padding is never read.

    Returns:
        A tensor of ``dtype`` with the quantized tensor's shape (FP4: twice the payload's size at
        ``dim``), dense with ``dim`` innermost.

    Raises:
        TypeError: payload, scale or result dtype that isn't in the tables; not dense and strided.
        IndexError: rank 0, or ``dim`` out of range.
        ValueError: unknown format or swizzle; a ``block_size`` that doesn't fit; payload and scale
            whose shapes don't belong together.
        RuntimeError: payload and scale on different devices.

    Special values: scale byte ``0xFF`` makes the whole block NaN; NaN and Inf codes pass through.
    Every NaN is the positive quiet one. Subnormal results are kept also when the device flushes
    subnormals. Bits 6 and 7 of an FP6 byte are ignored.

    Not differentiable, as :func:`quantize_mx`.

    Example::

        >>> import torch, aten_mx
        >>> x = torch.tensor([[1.0, 5.0]])
        >>> output, scale = aten_mx.quantize_mx(x, block_size=2, dtype="fp4_e2m1")
        >>> aten_mx.dequantize_mx(output, scale, block_size=2, elem_format="fp4_e2m1")
        tensor([[1., 4.]])
    """
    op = torch.ops.aten_mx.dequantize_mx
    swizzle = _int_or_text(swizzle_type, SwizzleType.parse)
    if has_torch_function_variadic(input, scale):
        # One node: a traced payload has no dtype yet that would tell the format.
        keywords = {"elem_format": elem_format, "swizzle_type": swizzle}
        return handle_torch_function(
            dequantize_mx, (input, scale), input, scale, dim, block_size, dtype, **keywords
        )
    if not isinstance(swizzle, int):
        args = (input, scale, dim, block_size, elem_format, dtype)
        check_dequantize(*args, swizzle_type=swizzle)
    if elem_format is None and swizzle != 0 and (fmt := _format_of(input.dtype)):
        elem_format = fmt.name
    if elem_format is None:  # a payload of another dtype gets the op's error
        return op.default(input, scale, dim, block_size, dtype)  # type: ignore[no-any-return]
    return op.format(  # type: ignore[no-any-return]
        input, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle
    )


def _format_of(dtype: torch.dtype) -> ElementFormat | None:
    """The element format with this dtype, for Dynamo to trace.

    Within ``torch.compiler.nested_compile_region`` it cannot guard a dict whose keys are dtypes
    (PyTorch 2.13).
    """
    for fmt in FORMATS.values():
        if fmt.dtype is dtype:
            return fmt
    return None


def _int_or_text(argument: Any, parse: Callable[[Any], int]) -> Any:
    """The op's int for ``argument``, or a text that the op's validation will refuse as unknown.

    An int is left for the op to check: Dynamo may have it as a symbol, which no enum takes.
    """
    if isinstance(argument, int):
        return int(argument)
    try:
        return int(parse(argument))
    except ValueError:
        return str(getattr(argument, "value", argument))


FRONT_DOORS: tuple[Callable[..., Any], ...] = (quantize_mx, dequantize_mx)
"""What the alias puts into ``torch``."""
