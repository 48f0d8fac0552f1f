"""The ops' schemas and their fake implementations, registered in that order.

The order matters: PyTorch refuses a fake for an op that already has a CompositeImplicitAutograd
kernel, so ``aten_mx.dispatch``, which registers those, is imported after this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aten_mx.layout import swizzle, swizzled_shape, unswizzle
from aten_mx.meta import Call, TensorSpec
from aten_mx.overloads import NAMESPACE, OPS, OVERLOADS, Overload, overloads_of

LIB = torch.library.Library(NAMESPACE, "DEF")

SCHEMAS = tuple(row.schema for row in OVERLOADS)


def empty_outputs(call: Call, device: torch.device) -> Any:
    """The results of a call without values: a tuple, or a tensor where there is one."""
    outputs = tuple(spec.empty(device) for spec in call.outputs.values())
    return outputs if len(outputs) > 1 else outputs[0]


def _fake(describe: Callable[..., Call]) -> Callable[..., Any]:
    """Outputs without values, of the call that ``describe`` gives."""

    def fake(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return empty_outputs(describe(self, *args, **kwargs), self.device)

    return fake


def _all_positional(row: Overload, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which takes an overload's arguments, for the internal op of the operator."""
    count = len(row.positional)

    def call(*args: Any) -> Any:
        return function(*args[:count], **dict(zip(row.keywords, args[count:], strict=True)))

    return call


def _calling(row: Overload) -> Callable[..., Any]:
    """A call of the overload."""

    def overload(*args: Any, **kwargs: Any) -> Any:
        return row.handle(*args, **kwargs)  # looked up now: it is not defined at import

    return _all_positional(row, overload)


def _bitcast(self: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """A copy of ``self``'s bytes as ``dtype``, laid out by the layout rule of ``dim``."""
    copy = TensorSpec(list(self.shape), dim % self.dim(), self.dtype).empty(self.device)
    return copy.copy_(self).view(dtype)


def _bitcast_fake(self: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    return TensorSpec(list(self.shape), dim % self.dim(), dtype).empty(self.device)


def _swizzle_fake(scale: Tensor) -> Tensor:
    return scale.new_empty(swizzled_shape(scale.shape))


def _unswizzle_fake(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    return swizzled.new_empty([*swizzled.shape[:-2], rows, columns])


_last_overloads = [overloads_of(op)[-1] for op in OPS]
INTERNAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    # Opaque to compilers: Inductor's C++ code generator (2.13) has no float8_e8m0fnu and no
    # float4_e2m1fn_x2, so the emulated kernel leaves the last dtype view to this op.
    "_bitcast(Tensor self, ScalarType dtype, int dim) -> Tensor": (_bitcast, _bitcast_fake),
    # Opaque to tracing: reshaping to tiles asks whether symbolic sizes are 1 or divide each other.
    # The answers would bind an exported program to the sizes of its trace.
    "_swizzle(Tensor scale) -> Tensor": (swizzle, _swizzle_fake),
    "_unswizzle(Tensor swizzled, SymInt rows, SymInt columns) -> Tensor": (
        unswizzle,
        _unswizzle_fake,
    ),
    # Opaque to tracing: each stands in a graph for a call that the device's own kernel must answer.
    # Without them AOTInductor's tracer would inline the emulated kernel (see dispatch.py).
    **{
        row.kernel_schema: (_calling(row), _all_positional(row, _fake(row.describe_checked)))
        for row in _last_overloads
    },
}
"""Internal ops: the schema, with the kernel and the fake."""

for _row in OVERLOADS:
    LIB.define(_row.schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(_row.qualified_name, _fake(_row.describe_checked), lib=LIB)
    # Calls for the Meta key are validated before it.
    LIB.impl(_row.handle, _fake(_row.describe), "Meta", allow_override=True)

for _schema, (_kernel, _kernel_fake) in INTERNAL.items():
    LIB.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    _name = _schema[: _schema.index("(")]
    LIB.impl(_name, _kernel, "CompositeExplicitAutograd")
    LIB.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _kernel_fake, lib=LIB)
