"""``torch.func.vmap`` rules: one call over the whole batch, with ``dim`` shifted past it.

The arguments are checked against one example's shape, so that the error of a bad call is the one
that the example alone would get.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aten_mx.meta import describe_dequantize, describe_quantize
from aten_mx.schema import LIB

_OUT_DIM = 0


def _example_shape(tensor: Tensor, batch_dim: int | None) -> list[int]:
    shape = list(tensor.shape)
    if batch_dim is not None:
        del shape[batch_dim]
    return shape


def _batch_first(tensor: Tensor, batch_dim: int | None, batch_size: int) -> Tensor:
    if batch_dim is None:
        return tensor.expand(batch_size, *tensor.shape)
    return tensor.movedim(batch_dim, 0)


def _register_quantize(op: torch._ops.OpOverload) -> None:
    def rule(
        info: Any, in_dims: Any, self: Tensor, dim: int, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        batch_dim = in_dims[0]
        call = describe_quantize(self, dim, *args, **kwargs, shape=_example_shape(self, batch_dim))
        return op(self.movedim(batch_dim, 0), call.dim + 1, *args, **kwargs), (_OUT_DIM, _OUT_DIM)

    torch.library.register_vmap(op, rule, lib=LIB)


def _register_dequantize(op: torch._ops.OpOverload, *, has_format: bool) -> None:
    def rule(
        info: Any,
        in_dims: Any,
        self: Tensor,
        scale: Tensor,
        dim: int,
        block_size: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, int]:
        payload_dim, scale_dim = in_dims[:2]
        described_args = args if has_format else (None, *args)
        call = describe_dequantize(
            self,
            scale,
            dim,
            block_size,
            *described_args,
            **kwargs,
            shapes=(_example_shape(self, payload_dim), _example_shape(scale, scale_dim)),
        )
        payload = _batch_first(self, payload_dim, info.batch_size)
        scale = _batch_first(scale, scale_dim, info.batch_size)
        return op(payload, scale, call.dim + 1, block_size, *args, **kwargs), _OUT_DIM

    torch.library.register_vmap(op, rule, lib=LIB)


# The composite's own ops meet a batch where another transform inlined it first, as in
# ``vmap(grad(...))``. Without a rule PyTorch loops over the examples.


def _register_bitcast(op: torch._ops.OpOverload) -> None:
    def rule(
        info: Any, in_dims: Any, self: Tensor, dtype: torch.dtype, dim: int
    ) -> tuple[Tensor, int]:
        rank = self.dim() - 1
        return op(self.movedim(in_dims[0], 0), dtype, dim % rank + 1), _OUT_DIM

    torch.library.register_vmap(op, rule, lib=LIB)


def _register_swizzle(op: torch._ops.OpOverload) -> None:
    def rule(info: Any, in_dims: Any, scale: Tensor, *sizes: int) -> tuple[Tensor, int]:
        # Of the last two dimensions; those before them are a batch already.
        return op(scale.movedim(in_dims[0], 0), *sizes), _OUT_DIM

    torch.library.register_vmap(op, rule, lib=LIB)


_register_quantize(torch.ops.aten_mx.quantize_mx.default)
_register_quantize(torch.ops.aten_mx.quantize_mx.format)
_register_dequantize(torch.ops.aten_mx.dequantize_mx.default, has_format=False)
_register_dequantize(torch.ops.aten_mx.dequantize_mx.format, has_format=True)
_register_bitcast(torch.ops.aten_mx._bitcast.default)
_register_swizzle(torch.ops.aten_mx._swizzle.default)
_register_swizzle(torch.ops.aten_mx._unswizzle.default)
