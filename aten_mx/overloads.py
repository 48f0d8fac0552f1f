"""The table of overloads: one row each. All other lists of overloads are made from the rows.

The schemas and fakes (``schema.py``), validation and the emulated kernels (``dispatch.py``), vmap
rules (``transforms.py``), registered kernels (``registry.py``), sharding rules
(``integrations/dtensor.py``), compile caches (``compiler.py``) and the conformance kit read the
rows. ``csrc/alone.cpp`` and the patch to PyTorch core repeat the schemas; tests compare them.

A new row needs four functions. One validates a call, one describes a valid call, and one computes
it. Where a backend's kernel of the base overload can answer it too, the fourth gives the arguments
for that kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from aten_mx.emulated import emulate_dequantize, emulate_quantize
from aten_mx.meta import Call, DequantizeCall, QuantizeCall, dequantize_call, quantize_call
from aten_mx.torch_compat import OpOverload
from aten_mx.validation import check_dequantize, check_quantize

NAMESPACE = "aten_mx"


@dataclass(frozen=True)
class Overload:
    """One row.

    Args:
        op: the operator's name.
        overload: the overload's name; empty for the base overload.
        signature: the rest of the schema. It never changes: a C++ kernel must match its schema
            argument for argument. New behaviour comes as a new row.
        check: raises where a call's arguments are wrong. Takes the op's arguments, and ``shapes``:
            the tensors' logical shapes, where these differ from the tensors' own.
        describe: the :data:`Call` that valid arguments mean.
        emulate: the results, from the tensors and the call.
        to_base: arguments of the base overload for the same results, from the tensors and the call;
            ``None`` where the overload is the base one.
    """

    op: str
    overload: str
    signature: str
    check: Callable[..., None]
    describe: Callable[..., Call]
    emulate: Callable[..., Any]
    to_base: Callable[..., tuple[Any, ...] | None] | None = None

    @property
    def name(self) -> str:
        """Such as ``quantize_mx`` or ``quantize_mx.format``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @cached_property
    def qualified_name(self) -> str:
        """The name with its namespace."""
        return f"{NAMESPACE}::{self.name}"

    @property
    def schema(self) -> str:
        """The schema, without the namespace."""
        return self.name + self.signature

    @cached_property
    def handle(self) -> OpOverload:
        """The overload in ``torch.ops``."""
        packet = getattr(getattr(torch.ops, NAMESPACE), self.op)
        handle: OpOverload = getattr(packet, self.overload or "default")
        return handle

    @cached_property
    def _declared(self) -> tuple[list[str], list[str]]:
        """Positional and keyword arguments, such as ``int scale_calculation_mode=0``."""
        inside = self.signature[1 : self.signature.index(")")]
        positional, _, keywords = inside.partition(", *, ")
        return positional.split(", "), keywords.split(", ") if keywords else []

    @cached_property
    def positional(self) -> list[str]:
        """Names of the positional arguments."""
        return [_name(argument) for argument in self._declared[0]]

    @cached_property
    def keywords(self) -> list[str]:
        """Names of the keyword-only arguments."""
        return [_name(argument) for argument in self._declared[1]]

    @cached_property
    def tensors(self) -> int:
        """How many tensors come first."""
        return sum(argument.startswith("Tensor ") for argument in self._declared[0])

    @cached_property
    def returns(self) -> list[str]:
        """Names of the results, empty where the schema gives none."""
        declared = self.signature.partition(" -> ")[2].strip("()")
        return [result.removeprefix("Tensor").strip() for result in declared.split(", ")]

    @cached_property
    def kernel_schema(self) -> str:
        """Schema of the internal op that stands in a graph for a call of a device's own kernel.

        Its arguments are those of this overload, the operator's last, all of them positional.
        """
        arguments = (argument.split("=")[0] for both in self._declared for argument in both)
        returns = self.signature[self.signature.index(")") + 1 :]
        return f"_{self.op}({', '.join(arguments)}){returns}"

    def describe_checked(self, *args: Any, **kwargs: Any) -> Call:
        """Validate a call and describe it."""
        self.check(*args, **kwargs)
        return self.describe(*args, **kwargs)


def _name(argument: str) -> str:
    return argument.split("=", maxsplit=1)[0].rsplit(maxsplit=1)[-1]


def _without_format(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for the overload in which the payload's dtype tells the format."""

    def base(
        self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype, **shapes: Any
    ) -> Any:
        return function(self, scale, dim, block_size, None, dtype, **shapes)

    return base


def _base_of_quantize(self: Tensor, call: QuantizeCall) -> tuple[Any, ...] | None:
    if call.fmt.dtype is None or call.swizzle_type:
        return None
    return self, call.dim, call.block_size, call.fmt.dtype, call.scale_calculation_mode


def _base_of_dequantize(
    self: Tensor, scale: Tensor, call: DequantizeCall
) -> tuple[Any, ...] | None:
    dtype = call.fmt.dtype
    if dtype is None or call.swizzle_type:
        return None
    if self.dtype is not dtype:
        self = torch.ops.aten_mx._bitcast(self, dtype, call.dim)
    return self, scale, call.dim, call.block_size, call.dtype


OVERLOADS = (
    Overload(
        "quantize_mx",
        "",
        "(Tensor self, int dim, int block_size, ScalarType dtype, "
        "int scale_calculation_mode=0) -> (Tensor output, Tensor scale)",
        check_quantize,
        quantize_call,
        emulate_quantize,
    ),
    Overload(
        "quantize_mx",
        "format",
        "(Tensor self, int dim, int block_size, str elem_format, "
        "int scale_calculation_mode=0, *, int swizzle_type=0) -> (Tensor output, Tensor scale)",
        check_quantize,
        quantize_call,
        emulate_quantize,
        _base_of_quantize,
    ),
    Overload(
        "dequantize_mx",
        "",
        "(Tensor self, Tensor scale, int dim, int block_size, ScalarType dtype) -> Tensor",
        _without_format(check_dequantize),
        _without_format(dequantize_call),
        emulate_dequantize,
    ),
    Overload(
        "dequantize_mx",
        "format",
        "(Tensor self, Tensor scale, int dim, int block_size, str elem_format, "
        "ScalarType dtype, *, int swizzle_type=0) -> Tensor",
        check_dequantize,
        dequantize_call,
        emulate_dequantize,
        _base_of_dequantize,
    ),
)
"""Of each operator the base overload first, and the one that says everything last."""

OPS = tuple(dict.fromkeys(row.op for row in OVERLOADS))
"""The operators' names."""


def overloads_of(op: str) -> tuple[Overload, ...]:
    """The rows of one operator."""
    return tuple(row for row in OVERLOADS if row.op == op)
