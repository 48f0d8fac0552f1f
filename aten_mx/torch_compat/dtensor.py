"""Private names of DTensor, imported only after DTensor itself.

They can go when ``torch.distributed.tensor.experimental.register_sharding`` takes a rule that sees
the whole schema of a call, uneven shards and strided ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor.placement_types import _StridedShard

from aten_mx.torch_compat import OpOverload

__all__ = [
    "DTensorSpec",
    "OpSchema",
    "OpSpec",
    "OpStrategy",
    "StridedShard",
    "count_results",
    "register_rule",
]

StridedShard = _StridedShard
"""How FSDP over tensor parallelism shards; no release exports it."""


def count_results(schema: OpSchema) -> int:
    """How many results the op has."""
    return len(schema.op._schema.returns)


def register_rule(
    op: OpOverload,
    rule: Callable[[OpSchema], OpStrategy],
    *,
    first_static: int,
    static_keywords: Sequence[str] = (),
) -> None:
    """Let ``rule`` decide how the tensors of an op are laid out.

    Args:
        op: the overload.
        rule: the strategy for a call.
        first_static: decisions are cached by all positional arguments from this one on,
        static_keywords: and by these.
    """
    info = RuntimeSchemaInfo(static_argnum=first_static, static_kwargkey=list(static_keywords))
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(op, rule, info)
