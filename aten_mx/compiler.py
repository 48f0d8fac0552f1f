"""What PyTorch's compilers must be told so that they run the kernel that eager mode would run.

* Inductor copies every CompositeImplicitAutograd op into its decomposition table when it is first
  imported. Then it inlines the emulated kernel also where the device has a kernel. So the ops are
  taken out of the table: where the device has no kernel, an earlier step of tracing inlines them.
* Caches on disk are keyed by the graph before decomposition, where a call is one node whatever the
  emulated kernel looks like and whichever kernel answers. So a tag of this package's sources and of
  the registered kernels goes into the key.

Both were measured on PyTorch 2.13. Neither imports a compiler before the user does.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import torch.compiler.config

from aten_mx.overloads import OVERLOADS
from aten_mx.torch_compat import BACKEND_KEYS, key_has_kernel
from aten_mx.torch_compat import compiler as torch_compiler

_TAG = "aten_mx:"
_NEVER_TRACED = ("demo", "testing")  # folders of the package

switches: set[str] = set()
"""Integrations that are on: they change the ops that a call is traced into."""


@functools.cache
def _source_digest() -> str:
    # All other modules, so that none that is traced can be forgotten.
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        if source.relative_to(package).parts[0] not in _NEVER_TRACED:
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
    """Let no graph run that was made under other registrations. On disk the tag does this."""
    # A device's built-in kernels are registered at its first use, which can be during the
    # first compilation for this device, so there is nothing to forget.
    torch_compiler.forget_compiled([row.handle for row in OVERLOADS])


tag_compile_caches()
torch_compiler.before_each_compilation(tag_compile_caches)
torch_compiler.keep_out_of_inductors_table([row.handle for row in OVERLOADS])
