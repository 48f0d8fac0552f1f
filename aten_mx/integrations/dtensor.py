"""Sharding rules for DTensor: each rank quantizes its own shard wherever that gives the same bytes.

DTensor has no rule for an op that it does not know. It would decompose the emulated kernel, also on
a device that has a kernel of its own, and stop at the first inner op without a rule. With the rules
every rank makes one call on its local tensor.

A shard may be quantized alone if it holds whole units along the sharded dimension:

* In a dimension other than ``dim`` a unit is one element: shards may be uneven or empty.
* In ``dim`` a unit is a block.
* Where the scale is swizzled, a unit of rows is 128. Tiles follow each other by rows, so a shard of
  such units has a shard of the tiles. The tiles of a shard of columns lie between those of other
  columns, so ``dim`` is never sharded there.

Where shards hold parts of units, the input is replicated first (gathered), and pending sums
(``Partial``) are summed: rounding does not commute with either. Then both outputs have the
placements of the input. ``dequantize_mx`` gives the scale the payload's placements.

This module registers the rules when it is imported, as it is with ``torch.distributed.tensor``.
DTensor runs the validation on the whole tensor and wraps its error in a ``RuntimeError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from aten_mx.dispatch import KEPT_WHOLE
from aten_mx.layout import TILE_ROWS, ceil_div
from aten_mx.overloads import OVERLOADS
from aten_mx.torch_compat.dtensor import (
    DTensorSpec,
    OpSchema,
    OpSpec,
    OpStrategy,
    StridedShard,
    count_results,
    register_rule,
)

_NEVER = 0  # in place of a unit: a dimension that must not be sharded


def _quantize(schema: OpSchema) -> OpStrategy:
    arguments: Any = schema.args_schema
    self, dim, block_size = arguments[:3]
    return _strategy(schema, self.shape, _units(schema, len(self.shape), dim, block_size))


def _dequantize(schema: OpSchema) -> OpStrategy:
    arguments: Any = schema.args_schema
    self, scale, dim, block_size = arguments[:4]
    shape = list(self.shape)
    # The number of values: a byte of the payload may hold two. A swizzled scale has another size
    # there, but then this dimension is never sharded.
    shape[dim] = scale.shape[dim] * block_size
    return _strategy(schema, shape, _units(schema, len(shape), dim, block_size))


def _bitcast(schema: OpSchema) -> OpStrategy:
    (self,) = schema.args_strategy
    return _strategy(schema, self.shape, [1] * len(self.shape))


def _units(schema: OpSchema, rank: int, dim: int, block_size: int) -> list[int]:
    """How many values of each dimension must stay together."""
    units = [1] * rank
    units[dim] = block_size
    if schema.kwargs_schema.get("swizzle_type", 0):
        units[-2:] = [TILE_ROWS, _NEVER]
    return units


def _strategy(schema: OpSchema, shape: Sequence[Any], units: list[int]) -> OpStrategy:
    """The one way to run the op: all its tensors have the placements that the first one can keep.

    Args:
        shape: of the unquantized tensor.
        units: of its dimensions.
    """
    mesh = schema.get_mesh_from_args()
    first = schema.args_strategy[0].strategies[0].output_spec
    stays = [
        _holds_whole_units(first, dim, size, unit)
        for dim, (size, unit) in enumerate(zip(shape, units, strict=True))
    ]
    placements = tuple(
        placement if _is_shard(placement) and stays[placement.dim] else Replicate()
        for placement in first.placements
    )
    inputs = [
        DTensorSpec(mesh, placements, tensor_meta=argument.tensor_meta)
        for argument in schema.args_strategy
    ]
    outputs = tuple(DTensorSpec(mesh, placements) for _ in range(count_results(schema)))
    output_specs = outputs[0] if len(outputs) == 1 else outputs
    return OpStrategy([OpSpec(output_specs=output_specs, input_specs=inputs)])


def _is_shard(placement: Placement) -> TypeGuard[Shard | StridedShard]:
    return isinstance(placement, (Shard, StridedShard))


def _holds_whole_units(spec: DTensorSpec, dim: int, size: Any, unit: int) -> bool:
    """Whether the shards of dimension ``dim``, of logical ``size``, begin and end at units."""
    if unit == 1:
        return True
    sizes = [size]  # of the shards, without repetitions
    for shards, placement in zip(spec.mesh.shape, spec.placements, strict=True):
        if not _is_shard(placement) or placement.dim != dim:
            continue
        if unit == _NEVER:
            return False
        if isinstance(placement, StridedShard):
            # A shard has pieces of several places (FSDP over tensor parallelism): even cuts only.
            pieces = shards * placement.split_factor
            if any(size % (pieces * unit) != 0 for size in sizes):
                return False
            sizes = [size // shards for size in sizes]
        else:
            # Like torch.chunk: full chunks, one that may be smaller, then empty ones. Where the
            # chunk is a multiple of the unit, payload and scale are cut at the same places.
            chunks = [ceil_div(size, shards) for size in sizes]
            if any(chunk % unit != 0 for chunk in chunks):
                return False
            rests = [size % chunk for size, chunk in zip(sizes, chunks, strict=True) if chunk != 0]
            sizes = chunks + rests
    return True


_RULES = {"quantize_mx": _quantize, "dequantize_mx": _dequantize}  # a new operator needs its own


def _register() -> None:
    for row in OVERLOADS:
        rule = _RULES[row.op]
        register_rule(row.handle, rule, first_static=row.tensors, static_keywords=row.keywords)
    register_rule(torch.ops.aten_mx._bitcast.default, _bitcast, first_static=1)
    KEPT_WHOLE.add(DTensor)


_register()
