"""A matrix multiplication of MX operands on every device, slow and plain. It is for tests."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from aten_mx.formats import FORMAT_OF_DTYPE
from aten_mx.functional import dequantize_mx
from aten_mx.layout import SwizzleType, swizzled_shape

BLOCK_SIZE = 32
"""Elements that share a scale in ``ScalingType.BlockWise1x32``, the one recipe of MX."""


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_recipe_a: Any,
    scale_b: Tensor,
    scale_recipe_b: Any,
    swizzle_a: SwizzleType | Any = SwizzleType.NO_SWIZZLE,
    swizzle_b: SwizzleType | Any = SwizzleType.NO_SWIZZLE,
    bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    r"""``torch.nn.functional.scaled_mm`` of MX operands, **dequantized and multiplied in float32**.

    It stands in where PyTorch has no MX kernel: PyTorch 2.13's on the CPU refuses these recipes.
    It shows that operands fit together and what their product is. It saves no memory and no time,
    and a real kernel may sum in another order: expect equal bits only where sums are exact.

    Args:
        mat_a: payload of shape ``(M, K)``, ``K / 2`` for FP4, strides ``(K, 1)``: what
            :func:`aten_mx.quantize_mx` gives for ``dim=-1``, in a dtype of an element format.
        mat_b: payload of shape ``(K, N)`` with ``K`` innermost: what ``dim=0`` gives, or the
            transpose of a weight's ``(N, K)`` with ``dim=-1``.
        scale_a: ``torch.float8_e8m0fnu``, ``(M, K / 32)``; swizzled, it may have any shape.
        scale_recipe_a: ``ScalingType.BlockWise1x32`` or its int.
        scale_b: ``(K / 32, N)`` as ``mat_b`` has it; swizzled: that of the transpose ``(N, K)``,
            because a swizzled scale has no other order.
        scale_recipe_b: as ``scale_recipe_a``.
        swizzle_a: the layout of ``scale_a``, of either enum ``SwizzleType`` or an int.
        swizzle_b: the layout of ``scale_b``.
        bias: of shape ``(N,)``, added in float32.
        output_dtype: of the result, rounded once.

    Returns:
        A contiguous tensor of shape ``(M, N)``.

    Raises:
        ValueError: another recipe; operands that aren't matrices with ``K`` innermost, or whose
            ``K`` differ; scales that don't fit.
        TypeError: dtypes that :func:`aten_mx.dequantize_mx` doesn't know.

    Special values are those of float32 multiplication: a NaN block makes its row or column NaN.

    Example::

        >>> import torch, aten_mx
        >>> from aten_mx.reference import scaled_mm
        >>> from torch.nn.functional import ScalingType
        >>> x, weight = torch.eye(3, 32), torch.arange(64.0).reshape(2, 32) / 8
        >>> a, scale_a = aten_mx.quantize_mx(x)
        >>> b, scale_b = aten_mx.quantize_mx(weight.t(), dim=0)
        >>> recipe = ScalingType.BlockWise1x32
        >>> scaled_mm(a, b, scale_a, recipe, scale_b, recipe, output_dtype=torch.float32)
        tensor([[0.0000, 4.0000],
                [0.1250, 4.0000],
                [0.2500, 4.0000]])
    """
    for name, recipe in (("scale_recipe_a", scale_recipe_a), ("scale_recipe_b", scale_recipe_b)):
        if getattr(recipe, "value", recipe) != ScalingType.BlockWise1x32.value:
            raise ValueError(f"scaled_mm: {name} must be ScalingType.BlockWise1x32, got {recipe}")
    rows, columns = mat_a, mat_b.t()
    for name, operand in (("mat_a", rows), ("mat_b, transposed,", columns)):
        if operand.dim() != 2 or not operand.is_contiguous():
            raise ValueError(
                f"scaled_mm: {name} must be a contiguous matrix, "
                f"got shape {list(operand.shape)} and strides {list(operand.stride())}"
            )
    if rows.shape[1] != columns.shape[1]:
        raise ValueError(
            "scaled_mm: mat_a and mat_b must have the same K, "
            f"got shapes {list(mat_a.shape)} and {list(mat_b.shape)}"
        )
    a = _dequantize(rows, scale_a, swizzle_a)
    b = _dequantize(columns, scale_b if _is_swizzled(swizzle_b) else scale_b.t(), swizzle_b)
    with _without_autocast(a.device.type):
        product = a @ b.t()
    if bias is not None:
        product += bias.to(torch.float32)
    return product.to(output_dtype)


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _is_swizzled(swizzle_type: Any) -> bool:
    return SwizzleType.parse(swizzle_type) is not SwizzleType.NO_SWIZZLE


def _dequantize(payload: Tensor, scale: Tensor, swizzle_type: Any) -> Tensor:
    """The numbers of an operand whose rows are blocked, as float32."""
    if _is_swizzled(swizzle_type) and payload.dtype in FORMAT_OF_DTYPE:
        columns = payload.shape[1] * FORMAT_OF_DTYPE[payload.dtype].codes_per_byte // BLOCK_SIZE
        shape = swizzled_shape((payload.shape[0], columns))
        if scale.numel() == math.prod(shape):  # if not, the op raises
            scale = scale.reshape(shape)
    return dequantize_mx(payload, scale, block_size=BLOCK_SIZE, swizzle_type=swizzle_type)
