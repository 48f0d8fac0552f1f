"""What answers a call: validation, then a device's kernel or the emulated one.

* **Autograd falls through.** The ops aren't differentiable, so outputs never require grad,
  whatever kernel answers, and no kernel needs an autograd registration of its own.
* **BackendSelect validates.** It sits below autograd and Python dispatch and above every backend
  key, so it runs before each kernel, C++ ones included, also under ``inference_mode``.
* **The emulated kernel** is CompositeImplicitAutograd: it answers on every device without a kernel,
  and compilers inline it. In a trace it runs without BackendSelect, so there it validates the call.
  The one for ``.format`` calls the base overload's kernel where the device has one. So a backend
  that registers nothing else is reached by both overloads.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aten_mx import checking
from aten_mx.meta import Call
from aten_mx.overloads import NAMESPACE, OVERLOADS, Overload, overloads_of
from aten_mx.schema import LIB
from aten_mx.torch_compat import (
    BACKEND_SELECT,
    BELOW_BACKEND_SELECT,
    PYTHON,
    FunctionalTensor,
    OpOverload,
    below_autograd,
    dispatch_functionalize,
    key_has_kernel,
    key_of_device,
    remove_library,
)

KEPT_WHOLE: set[type[Tensor]] = set()
"""Tensor subclasses that dispatch the ops themselves; the emulated kernel would hide the call.

Where the device has no kernel, the dispatcher runs a CompositeImplicit one at autograd's place, and
that is above ``__torch_dispatch__``.
"""


def device_has_kernel(overload: str, device: torch.device) -> bool:
    """Whether ``device`` has a kernel of its own for an overload, and not only the emulated one."""
    return key_has_kernel(overload, key_of_device(device.type))


def inlined(row: Overload) -> Callable[..., Any]:
    """An overload in plain PyTorch ops, whatever kernels there are."""

    def emulated(*args: Any, **kwargs: Any) -> Any:
        return row.emulate(*args[: row.tensors], row.describe_checked(*args, **kwargs))

    return emulated


def _composite(row: Overload) -> Callable[..., Any]:
    """What answers for an overload where the device has no kernel of its own for it."""
    base = overloads_of(row.op)[0]

    def composite(keyset: Any, self: Tensor, *args: Any, **kwargs: Any) -> Any:
        forwards = row.to_base is not None and device_has_kernel(base.qualified_name, self.device)
        # BackendSelect is in the keys until it has run. The dispatcher may run a CompositeImplicit
        # kernel at autograd's place, which is above BackendSelect; so may tracers that inline.
        unvalidated = keyset.has(BACKEND_SELECT)
        eager = unvalidated and not keyset.has(PYTHON)
        if type(self) in KEPT_WHOLE or (forwards and eager):
            with below_autograd():
                return row.handle(self, *args, **kwargs)
        if unvalidated:
            row.check(self, *args, **kwargs)
        call = row.describe(self, *args, **kwargs)
        tensors = (self, *args[: row.tensors - 1])
        # A tracer is about to inline a call that the device has a kernel for. AOTInductor's does
        # (PyTorch 2.13), because its trace decomposes all CompositeImplicit ops. An opaque op keeps
        # the call in the graph.
        if type(self) is FunctionalTensor and device_has_kernel(row.qualified_name, self.device):
            kernel = getattr(getattr(torch.ops, NAMESPACE), f"_{row.op}")
            return _as_described(kernel(*tensors, *call.arguments, *call.keywords.values()), call)
        arguments = row.to_base(*tensors, call) if forwards and row.to_base else None
        if arguments is None:
            return row.emulate(*tensors, call)
        op = base.handle
        results = op(*arguments) if unvalidated else op.redispatch(keyset, *arguments)
        return _as_described(results, call)

    return composite


def _as_described(results: Any, call: Call) -> Any:
    """The results of a kernel of another overload, which may have another dtype for the bytes."""
    bitcast = torch.ops.aten_mx._bitcast
    outputs = results if isinstance(results, tuple) else (results,)
    typed = tuple(
        output if output.dtype is spec.dtype else bitcast(output, spec.dtype, spec.dim)
        for output, spec in zip(outputs, call.outputs.values(), strict=True)
    )
    return typed if len(typed) > 1 else typed[0]


def _validating(row: Overload) -> Callable[..., Any]:
    op, check = row.handle, row.check

    def backend_select(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        # The guard: a kernel written in differentiable ops must not record them.
        with below_autograd():
            results = op.redispatch(keyset & BELOW_BACKEND_SELECT, *args, **kwargs)
        if checking.ENABLED:
            checking.check_outputs(op, row.describe(*args, **kwargs), args[0], results)
        return results

    return backend_select


for _row in OVERLOADS:
    LIB.impl(_row.handle, torch.library.fallthrough_kernel, "Autograd")
    LIB.impl(_row.handle, _composite(_row), "CompositeImplicitAutograd", with_keyset=True)

_validation: list[torch.library.Library] = []


def add_python_validation() -> None:
    """Validate at BackendSelect, above what a C++ library may have registered there."""
    library = torch.library.Library(NAMESPACE, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about the override, which is intended
        for row in OVERLOADS:
            library.impl(row.handle, _validating(row), "BackendSelect", with_keyset=True)
    _validation.append(library)


def remove_python_validation() -> None:
    """Remove it where a C++ library validates in its place."""
    while _validation:
        remove_library(_validation.pop())


def validates_in_python() -> bool:
    """Whether calls are validated by Python, and not by a C++ library in its place."""
    return bool(_validation)


add_python_validation()


def decomposition_table() -> dict[OpOverload, Callable[..., Any]]:
    """The emulated kernels, for a caller who wants the ops inlined.

    Returns:
        A new dict from each overload to its emulated kernel, as ``aot_autograd``, ``make_fx`` and
        ``ExportedProgram.run_decompositions`` take it. The first two then inline the ops also on a
        device that has a kernel; ``run_decompositions`` (PyTorch 2.13) leaves them one node there.

    Example::

        >>> import aten_mx
        >>> sorted(str(op) for op in aten_mx.decomposition_table())[:2]
        ['aten_mx.dequantize_mx.default', 'aten_mx.dequantize_mx.format']
    """
    return {row.handle: _without_mutations(inlined(row)) for row in OVERLOADS}


def _without_mutations(emulated: Callable[..., Any]) -> Callable[..., Any]:
    """``emulated`` as a graph without mutations: it reuses its temporaries in place.

    AOTAutograd decomposes after it has removed mutations from the graph, so this removes them.
    ``ExportedProgram`` decomposes before that, and its own functionalization cannot nest.
    """
    functional = dispatch_functionalize(emulated)

    @functools.wraps(emulated)
    def decomposition(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        function = emulated if isinstance(self, FunctionalTensor) else functional
        return function(self, *args, **kwargs)

    return decomposition
