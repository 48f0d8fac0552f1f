"""The environment variables of this package and the folder of its cache.

An empty variable means the same as one that is not set. The variables are:

* ``ATEN_MX_CPU``: ``auto``, ``off`` or ``require``; see :mod:`aten_mx.backends.cpu`.
* ``ATEN_MX_TRITON``: ``auto`` or ``off``; see :mod:`aten_mx.backends.triton`.
* ``ATEN_MX_AUTOLOAD``: ``0`` imports no plugins; see :mod:`aten_mx.plugins`.
* ``ATEN_MX_CHECK``: ``1`` checks what kernels return; see :mod:`aten_mx.checking`.
* ``ATEN_MX_CACHE_DIR``: where the native kernel's build is kept.
* ``ATEN_MX_CXXFLAGS``: further flags of that build.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def read(name: str, default: str = "", choices: Sequence[str] = ()) -> str:
    """The value of ``ATEN_MX_<name>``, or ``default`` where it is empty or not set.

    Raises:
        ValueError: the value is none of ``choices``.
    """
    variable = f"ATEN_MX_{name}"
    value = os.environ.get(variable) or default
    if choices and value not in choices:
        raise ValueError(f"{variable} must be one of {', '.join(choices)}, got {value}")
    return value


def cache_folder() -> Path:
    """Where this package keeps what it builds; the folder may not be there yet.

    Returns:
        An absolute path: ``$ATEN_MX_CACHE_DIR``, else ``aten_mx`` in the user's cache folder.

    Raises:
        FileNotFoundError: the variables name no folder, and the user has no home.
    """
    chosen = read("CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    # The XDG base directory specification says to ignore a relative path.
    users_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if users_cache.is_absolute():
        return users_cache / "aten_mx"
    try:
        home = Path.home()
    except (RuntimeError, KeyError):
        home = Path()
    if not home.is_absolute():
        raise FileNotFoundError(
            "the user has no home folder to keep the build in; set ATEN_MX_CACHE_DIR to a folder"
        )
    return home / ".cache" / "aten_mx"
