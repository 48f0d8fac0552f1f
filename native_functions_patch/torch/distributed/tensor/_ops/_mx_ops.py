# Copyright (c) Meta Platforms, Inc. and affiliates
"""Sharding strategies of the Microscaling quantization ops."""

from typing import Any, cast

import torch
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.single_dim_strategy import (
    _ShardingPlaceholder,
    register_single_dim_strategy,
)
from torch.distributed.tensor._ops.utils import normalize_dim
from torch.distributed.tensor.placement_types import Placement

aten = torch.ops.aten


def _shardable_dims(self: Any, dim: int, swizzle_type: int) -> range | list[int]:
    """Dimensions along which values and scales are cut at the same places."""
    if not isinstance(self, TensorMeta):
        raise AssertionError(f"Expected TensorMeta, got {type(self)}")
    ndim = len(self.shape)
    if swizzle_type:
        # A tile holds scales of 128 rows and 128 columns, so that the last two
        # dimensions of a swizzled scale aren't those of the values.
        return range(ndim - 2)
    # A shard of the blocked dimension need not end with a block.
    dim = normalize_dim(dim, ndim)
    return [d for d in range(ndim) if d != dim]


@register_single_dim_strategy(
    [aten.quantize_mx.default, aten.quantize_mx.format],
    schema_info=RuntimeSchemaInfo(1, static_kwargkey=["swizzle_type"]),
)
def quantize_mx_single_dim_strategy(
    op: torch._ops.OpOverload,
    args_schema: tuple[Any, ...],
    kwargs_schema: dict[str, Any],
) -> list[list[Placement | _ShardingPlaceholder]]:
    swizzle_type = kwargs_schema.get("swizzle_type", 0)
    dims = _shardable_dims(args_schema[0], cast(int, args_schema[1]), swizzle_type)
    # [output, scale, self]
    return [[_ShardingPlaceholder(d) for _ in range(3)] for d in dims]


@register_single_dim_strategy(
    [aten.dequantize_mx.default, aten.dequantize_mx.format],
    schema_info=RuntimeSchemaInfo(2, static_kwargkey=["swizzle_type"]),
)
def dequantize_mx_single_dim_strategy(
    op: torch._ops.OpOverload,
    args_schema: tuple[Any, ...],
    kwargs_schema: dict[str, Any],
) -> list[list[Placement | _ShardingPlaceholder]]:
    swizzle_type = kwargs_schema.get("swizzle_type", 0)
    dims = _shardable_dims(args_schema[0], cast(int, args_schema[2]), swizzle_type)
    # [output, self, scale]
    return [[_ShardingPlaceholder(d) for _ in range(3)] for d in dims]
