"""What PyTorch's compilers must be told so that they run the kernel that eager mode would run.

* Inductor copies every CompositeImplicitAutograd op into its decomposition table when it is first
  imported, and then inlines the composite also where the device has a kernel. The ops are taken out
  again: without a kernel they are inlined all the same, earlier.
* Caches on disk are keyed by the graph before decomposition, where a call is one node whatever its
  composite looks like and whichever kernel it stands for. A tag of this package's sources and of
  the registered kernels goes into the key.

Both were measured on PyTorch 2.13; neither imports a compiler before the user does.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.compiler.config
from torch._guards import CompileContext

from aten_mx.after_import import after_import
from aten_mx.dispatch import key_has_kernel
from aten_mx.overloads import OVERLOADS

_TAG = "aten_mx:"
BACKEND_KEYS = tuple(
    sorted(
        name
        for name in torch._C.DispatchKey.__members__
        if f"Autograd{name}" in torch._C.DispatchKey.__members__
        and name not in ("Functionality", "Meta", "NestedTensor", "Other")
    )
)
"""Dispatch keys under which a device's kernel can be registered."""

switches: set[str] = set()
"""Integrations that are on: the same call is then traced into other ops."""


@functools.cache
def _source_digest() -> str:
    # All modules but the demo's: whichever of them is traced, none can be forgotten.
    package = Path(__file__).parent
    digest = hashlib.sha256()
    folders = ("*.py", "backends/**/*.py", "integrations/*.py")
    for source in sorted(path for folder in folders for path in package.glob(folder)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def cache_tag() -> str:
    """This package's part of the cache key: its sources, the kernels and switches of right now."""
    kernels = [
        f"{row.name}@{key}"
        for row in OVERLOADS
        for key in BACKEND_KEYS
        if key_has_kernel(row.qualified_name, key)
    ]
    return "+".join((_TAG + _source_digest(), *kernels, *sorted(switches)))


def tag_compile_caches() -> None:
    """Bring :func:`cache_tag` up to date in ``torch.compiler.config.cache_key_tag``.

    Runs at import and whenever Dynamo starts to compile. A user's own tag stays.
    """
    config = torch.compiler.config
    users = [tag for tag in config.cache_key_tag.split(";") if tag and not tag.startswith(_TAG)]
    config.cache_key_tag = ";".join([*users, cache_tag()])


def forget_compiled() -> None:
    """No graph made under other registrations or switches may run; on disk the tag sees to it."""
    for row in OVERLOADS:
        row.handle._dispatch_cache.clear()
    # A device's built-in kernels are registered at its first use, which can be in the midst of a
    # compilation: that of the first graph for this device, so that there is nothing to forget.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo and CompileContext.try_get() is None:
        dynamo.reset()


def _tag_when_compiling(callbacks: ModuleType) -> None:
    # Not a registered callback: torch._dynamo.reset() forgets those.
    handler = callbacks.callback_handler
    run_start_callbacks = handler.run_start_callbacks

    def tag_and_run(args: Any) -> None:
        tag_compile_caches()
        run_start_callbacks(args)

    handler.run_start_callbacks = tag_and_run


def _drop_from_table(decomposition: ModuleType) -> None:
    for row in OVERLOADS:
        decomposition.decompositions.pop(row.handle, None)


tag_compile_caches()
after_import(
    "torch._dynamo.callback",
    _tag_when_compiling,
    otherwise="compile caches follow kernels that are registered after aten_mx is imported; call "
    "aten_mx.compiler.tag_compile_caches() after each registration",
)
after_import(
    "torch._inductor.decomposition",
    _drop_from_table,
    otherwise="torch.compile runs a device's own kernel; it may run the emulated one instead",
)
