"""Private names of Dynamo, AOTAutograd and Inductor; none is imported before the user does so.

Where a later release has renamed one, a warning in the log says what no longer holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from aten_mx.after_import import after_import, attempt
from aten_mx.torch_compat import OpOverload, clear_dispatch_cache


def before_each_compilation(callback: Callable[[], None]) -> None:
    """Call ``callback`` whenever Dynamo starts to compile.

    Dynamo's registered callbacks do not serve: ``torch._dynamo.reset()`` forgets them.
    This can go when the key of compile caches can be given by a function.
    """

    def patch(callbacks: ModuleType) -> None:
        handler = callbacks.callback_handler
        run_start_callbacks = handler.run_start_callbacks

        def call_and_run(args: Any) -> None:
            callback()
            run_start_callbacks(args)

        handler.run_start_callbacks = call_and_run

    after_import(
        "torch._dynamo.callback",
        patch,
        otherwise="compile caches do not notice kernels that are registered after the import of "
        "aten_mx, so clear them when you register one",
    )


def keep_out_of_inductors_table(ops: Iterable[OpOverload]) -> None:
    """Let Inductor call a device's kernel of these overloads instead of inlining the emulated one.

    Inductor copies every CompositeImplicitAutograd op into its table when it is first imported
    (measured on 2.13). This can go when it asks whether the device has a kernel.
    """

    def remove(decomposition: ModuleType) -> None:
        for op in ops:
            decomposition.decompositions.pop(op, None)

    after_import(
        "torch._inductor.decomposition",
        remove,
        otherwise="torch.compile may run the emulated kernel where the device has its own",
    )


def forget_compiled(ops: Iterable[OpOverload]) -> None:
    """Let no graph that was compiled before run any more, nor what the dispatcher found before."""

    def clear() -> None:
        for op in ops:
            clear_dispatch_cache(op)

    stale = "a kernel that was registered after the first call may not be called"
    attempt(clear, "torch._ops", otherwise=stale)
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        graphs = "graphs that were compiled before may run, so call torch.compiler.reset()"
        attempt(lambda: _reset(dynamo), "torch._dynamo", otherwise=graphs)


def _reset(dynamo: ModuleType) -> None:
    # Not during a compilation: PyTorch has no public way to ask for that.
    from torch._guards import CompileContext

    if CompileContext.try_get() is None:
        dynamo.reset()


def has_compile_backend(name: str) -> bool:
    """Whether ``torch.compile`` knows a backend of that name; imports Dynamo.

    ``torch.compiler.list_backends()`` leaves some out. This can go when it has a parameter for all.
    """
    import torch._dynamo

    try:
        torch._dynamo.lookup_backend(name)
    except torch._dynamo.exc.InvalidBackend:
        return False
    return True
