"""``torch.func.vmap`` rules: one call over the whole batch, with ``dim`` shifted past it.

The arguments are checked against one example's shape. So a bad call gets the error that the example
alone would get.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aten_mx.overloads import OVERLOADS, Overload
from aten_mx.schema import LIB
from aten_mx.torch_compat import OpOverload

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


def _register(row: Overload) -> None:
    dim_at = row.positional.index("dim") if "dim" in row.positional else None

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        tensors = args[: row.tensors]
        shapes = list(map(_example_shape, tensors, in_dims))
        row.check(*args, **kwargs, shapes=shapes)
        batches = (
            _batch_first(tensor, batch_dim, info.batch_size)
            for tensor, batch_dim in zip(tensors, in_dims, strict=False)
        )
        arguments = [*batches, *args[row.tensors :]]
        if dim_at is not None:
            arguments[dim_at] = args[dim_at] % len(shapes[0]) + 1
        results = row.handle(*arguments, **kwargs)
        return results, (_OUT_DIM,) * len(results) if isinstance(results, tuple) else _OUT_DIM

    torch.library.register_vmap(row.handle, rule, lib=LIB)


# The emulated kernel's own ops meet a batch where another transform inlined it first, as in
# ``vmap(grad(...))``. Without a rule PyTorch loops over the examples.


def _register_bitcast(op: OpOverload) -> None:
    def rule(
        info: Any, in_dims: Any, self: Tensor, dtype: torch.dtype, dim: int
    ) -> tuple[Tensor, int]:
        rank = self.dim() - 1
        return op(self.movedim(in_dims[0], 0), dtype, dim % rank + 1), _OUT_DIM

    torch.library.register_vmap(op, rule, lib=LIB)


def _register_swizzle(op: OpOverload) -> None:
    def rule(info: Any, in_dims: Any, scale: Tensor, *sizes: int) -> tuple[Tensor, int]:
        # The op works on the last two dimensions; those before them are a batch already.
        return op(scale.movedim(in_dims[0], 0), *sizes), _OUT_DIM

    torch.library.register_vmap(op, rule, lib=LIB)


for _row in OVERLOADS:
    _register(_row)
_register_bitcast(torch.ops.aten_mx._bitcast.default)
_register_swizzle(torch.ops.aten_mx._swizzle.default)
_register_swizzle(torch.ops.aten_mx._unswizzle.default)
