"""Loads backends that other packages bring, by the entry-point group ``aten_mx.backends``.

As PyTorch's own group ``torch.backends``: an entry point names a function without arguments,
which registers the package's kernels. ``ATEN_MX_AUTOLOAD=0`` turns this off.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points

from aten_mx import environment, registry

GROUP = "aten_mx.backends"

_loaded: set[tuple[str, str]] = set()
"""Names and values of the entry points that have been called.

This module stays imported after a failed import of the package and after a reload. The next import
must not register the kernels of healthy plugins again.
"""


def load_backends() -> None:
    """Call every entry point of the group that has not been called.

    If one fails, the kernels that it registered are removed. The next import of the package calls
    it again.

    Raises:
        RuntimeError: one failed or could not be loaded. The text has its name and package.
    """
    if environment.read("AUTOLOAD", "1") == "0":
        return
    for entry_point in entry_points(group=GROUP):
        called = (entry_point.name, entry_point.value)
        if called in _loaded:
            continue
        before = registry.registered()
        try:
            _call(entry_point)
        except Exception as error:
            for handle in registry.registered()[len(before) :]:
                handle.unregister()
            package = entry_point.dist.name if entry_point.dist else "unknown package"
            raise RuntimeError(
                f"aten_mx: backend {entry_point.name} ({entry_point.value}, {package}) could not "
                f"be loaded: {type(error).__name__}: {error}. ATEN_MX_AUTOLOAD=0 imports aten_mx "
                "without such backends."
            ) from error
        _loaded.add(called)


def _call(entry_point: EntryPoint) -> None:
    module = sys.modules.get(entry_point.module)
    if module is not None and getattr(module.__spec__, "_initializing", False):
        raise ImportError(
            f"{entry_point.module} is being imported and imports aten_mx, which would call "
            f"{entry_point.attr} too early; import aten_mx inside that function"
        )
    entry_point.load()()


def import_backend(name: str) -> None:
    """Import a backend that isn't installed as a plugin.

    Args:
        name: ``module``, or ``module:function`` as an entry point has it, to call as well.

    Raises:
        ImportError, AttributeError: no such module or function.
    """
    module, _, function = name.partition(":")
    imported = importlib.import_module(module)
    if function:
        getattr(imported, function)()
