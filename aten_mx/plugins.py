"""Loads backends that other packages bring, by the entry-point group ``aten_mx.backends``.

As PyTorch's own group ``torch.backends``: an entry point names a function without arguments,
which registers the package's kernels. ``ATEN_MX_AUTOLOAD=0`` turns this off.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points

GROUP = "aten_mx.backends"


def load_backends() -> None:
    """Call every entry point of the group.

    Raises:
        RuntimeError: one could not be loaded or failed; its name and package are in the text.
    """
    if os.environ.get("ATEN_MX_AUTOLOAD", "1") == "0":
        return
    for entry_point in entry_points(group=GROUP):
        try:
            entry_point.load()()
        except Exception as error:
            package = entry_point.dist.name if entry_point.dist else "unknown package"
            raise RuntimeError(
                f"aten_mx: backend {entry_point.name} ({entry_point.value}, {package}) could not "
                f"be loaded: {type(error).__name__}: {error}. ATEN_MX_AUTOLOAD=0 imports aten_mx "
                "without such backends."
            ) from error
