"""A linear layer that trains in MX: each operand of its three products is quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import aten_mx

Log = list[tuple[Tensor, Tensor]]
"""Payload and scale of each operand, in the order of the calls."""


def product(a: Tensor, b: Tensor, elem_format: str, log: Log) -> Tensor:
    """``a @ b.t()``, both quantized along the contraction: shapes (M, K) and (N, K) to (M, N).

    In float64, where sums of so few products of such short significands are exact: whatever the
    order of a matrix multiply, its result is the same; then rounded once to float32.
    """
    operands = []
    for operand in (a, b):
        pair = aten_mx.quantize_mx(operand, dtype=elem_format)
        log.append(pair)
        operands.append(aten_mx.dequantize_mx(*pair, elem_format=elem_format).double())
    return (operands[0] @ operands[1].t()).float()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, elem_format: str, log: Log) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.arguments = (elem_format, log)
        return product(x, weight, elem_format, log)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = product(grad, weight.t(), *ctx.arguments)
        grad_weight = product(grad.t(), x.t(), *ctx.arguments)
        return grad_x, grad_weight, None, None


class MXLinear(nn.Linear):
    """``nn.Linear`` without bias, for ``x`` of shape (M, in_features).

    Training needs M, in_features and out_features to be multiples of 32.
    """

    def __init__(self, in_features: int, out_features: int, elem_format: str = "fp8_e4m3") -> None:
        super().__init__(in_features, out_features, bias=False)
        self.elem_format = elem_format
        self.log: Log = []

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight, self.elem_format, self.log)
