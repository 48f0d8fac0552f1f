"""Builds, caches and loads the native CPU kernel.

The C++ is that of ``native_functions_patch/``, the proposal to PyTorch core, and
``aten_mx/csrc/register.cpp``, which binds it to the ops. ``python -m aten_mx build`` compiles it
for the installed torch; importing the package loads a build that is there, and compiles nothing.

``ATEN_MX_CPU`` is ``auto`` (the default: without a build the emulated kernel answers), ``off``, or
``require`` (without a build the import fails).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from aten_mx import checking, dispatch
from aten_mx.backends.build import compile_library, compiler_command, key

BUILD_HINT = "python -m aten_mx build"
SETTINGS = ("auto", "off", "require")


def library_path() -> Path:
    """Where the build for this torch and these sources is, or would be.

    Returns:
        A path in ``$ATEN_MX_CACHE_DIR``, or else ``aten_mx`` in the user's cache directory.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("ATEN_MX_CACHE_DIR") or Path(home) / "aten_mx")
    return cache / f"torch-{torch.__version__}-{key()}" / "libaten_mx_cpu.so"


def build(report: Callable[[str], None] = print, *, force: bool = False) -> Path:
    """Compile the kernel for the installed torch, unless that has been done.

    Two processes may build at once: the second waits for the first and takes its library, which is
    moved into its place in one step.

    Args:
        report: receives a line of text at each step.
        force: compile also where there is a build.

    Returns:
        The library's path.

    Raises:
        BuildError: no compiler, a machine that the sources don't cover, or a compiler's error.
    """
    compiler = compiler_command()
    import fcntl  # not on Windows, which ends above

    target = library_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists() and not force:
            report(f"already built: {target}")
        else:
            compile_library(compiler, target, report)
    return target


@functools.cache
def load() -> None:
    """Load the build, so that it answers for CPU tensors and validates every call.

    Raises:
        FileNotFoundError: there is none.
        OSError: it doesn't load.
    """
    path = library_path()
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; build it: {BUILD_HINT}")
    # Its validation at BackendSelect takes the place of Python's. That goes away first: PyTorch
    # warns about a kernel registered over another one.
    dispatch.remove_python_validation()
    try:
        torch.ops.load_library(str(path))
    except BaseException:
        dispatch.add_python_validation()
        raise
    if checking.ENABLED:  # checks outputs too, which only Python's validation does
        dispatch.add_python_validation()


def load_as_configured() -> bool:
    """Load the build as ``ATEN_MX_CPU`` says.

    Returns:
        Whether the native kernel now answers.

    Raises:
        ValueError: ``ATEN_MX_CPU`` has another value than the three.
        FileNotFoundError, OSError: it is ``require``, and there is no build or none that loads.
    """
    setting = os.environ.get("ATEN_MX_CPU", "auto")
    if setting not in SETTINGS:
        raise ValueError(f"ATEN_MX_CPU must be one of {', '.join(SETTINGS)}, got {setting}")
    if setting == "off":
        return False
    try:
        load()
    except OSError as error:
        if setting == "require":
            raise
        logging.getLogger("aten_mx").info(
            "the emulated kernel answers on CPU; for the native one: %s (%s)", BUILD_HINT, error
        )
        return False
    return True
