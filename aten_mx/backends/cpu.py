"""Builds, caches and loads the native CPU kernel.

The C++ is in ``aten_mx/csrc``; the patch to PyTorch core takes it from there.
``python -m aten_mx build`` compiles it for the installed torch. Importing the package compiles
nothing: it verifies and loads a build that is there.

``ATEN_MX_CPU`` is ``auto`` (the default: without a build the emulated kernel answers), ``off``, or
``require`` (without a build the import fails).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from aten_mx import checking, dispatch, environment
from aten_mx.backends.build import compile_library, compiler_command, key
from aten_mx.backends.library import make_private_folder, verify

BUILD_HINT = "python -m aten_mx build"
SETTINGS = ("auto", "off", "require")


def library_path() -> Path:
    """Where the build for this torch and these sources is, or would be.

    Returns:
        A path in ``$ATEN_MX_CACHE_DIR``, or else ``aten_mx`` in the user's cache directory.

    Raises:
        FileNotFoundError: there is no folder for it: the user has no home.
    """
    return environment.cache_folder() / f"torch-{torch.__version__}-{key()}" / "libaten_mx_cpu.so"


def build(report: Callable[[str], None] = print, *, force: bool = False) -> Path:
    """Compile the kernel for the installed torch, unless a build is there that can be loaded.

    Two processes may build at once: the second waits for the first and takes its library, which is
    moved into its place in one step.

    Args:
        report: receives a line of text at each step.
        force: compile also where there is a build.

    Returns:
        The library's path.

    Raises:
        BuildError: no compiler, a machine that the sources don't cover, or a compiler's error.
        OSError: the cache cannot be written, or belongs to someone else.
    """
    target = library_path()
    if not force and _is_built(target, report):  # also in a cache that cannot be written
        return target
    compiler = compiler_command()
    import fcntl  # not on Windows, which ends above

    make_private_folder(target.parent)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if force or not _is_built(target, report):
            compile_library(compiler, target, report)
    verify(target)
    return target


def _is_built(library: Path, report: Callable[[str], None]) -> bool:
    try:
        verify(library)
    except OSError:
        return False
    report(f"already built: {library}")
    return True


@functools.cache
def load() -> None:
    """Load the build, so that it answers for CPU tensors and validates every call.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is damaged, another user can write it, or it doesn't load.
    """
    path = library_path()
    try:
        verify(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there; build it: {BUILD_HINT}") from error
    # Its validation at BackendSelect replaces Python's. That is removed first, because PyTorch
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
    setting = environment.read("CPU", "auto", SETTINGS)
    if setting == "off":
        return False
    try:
        load()
    except OSError as error:
        if setting == "require":
            raise
        # No build is usual. One that cannot be loaded is a fault that the user should see.
        level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
        logging.getLogger("aten_mx").log(
            level,
            "the emulated kernel answers on CPU; for the native one: %s (%s)",
            BUILD_HINT,
            error,
        )
        return False
    return True
