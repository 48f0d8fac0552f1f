"""Compiles the native CPU kernel: which sources, which compiler, and how they become a library."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from aten_mx import environment
from aten_mx.backends.library import publish
from aten_mx.backends.recipe import (
    DEFINITIONS,
    FLAGS,
    IS_AARCH64,
    IS_X86,
    LIBRARIES,
    Unit,
    units,
)

_CSRC = Path(__file__).parents[1] / "csrc"
_ATEN = _CSRC / "aten" / "src"
# They call functions that only torchgen's headers declare: they are for PyTorch core alone.
_ONLY_IN_CORE = ("QuantizeMXComposite.cpp", "QuantizeMXMeta.cpp")


class BuildError(RuntimeError):
    """The kernel cannot be built here; the text says why."""


def _sources() -> list[Path]:
    return [path for path in sorted(_CSRC.rglob("*.cpp")) if path.name not in _ONLY_IN_CORE]


def _flags() -> list[str]:
    extra = shlex.split(environment.read("CXXFLAGS"))  # the fuzzer's sanitizers
    return [*FLAGS, *DEFINITIONS, *extra]


@functools.cache
def key() -> str:
    """A digest of what the library depends on, but for the compiler, which may be any."""
    digest = hashlib.sha256()
    commands = [*_flags(), *LIBRARIES, *(flag for unit in units(_sources()) for flag in unit.flags)]
    digest.update("\0".join((platform.machine(), *commands)).encode())
    for source in (*sorted(_CSRC.rglob("*.h")), *_sources()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(command: list[str], target: Path, report: Callable[[str], None]) -> None:
    """Compile and link the library ``target`` with a compiler's command line."""
    jobs = units(_sources())
    started = time.monotonic()
    # In the target's own directory: a move within one file system is atomic.
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as scratch:
        directory = Path(scratch)
        name = shlex.join(command)
        report(f"compiling {len(jobs)} files with {name} for torch {torch.__version__}")

        def compile_unit(unit: Unit) -> Path:
            output = directory / f"{unit.name}.o"
            include = Path(torch.__file__).parent / "include"
            paths = (f"-I{_ATEN}", f"-isystem{include}")
            files = ("-c", str(unit.source), "-o", str(output))
            _run([*command, *words("CXXFLAGS"), *_flags(), *unit.flags, *paths, *files])
            report(f"  {unit.name} ({time.monotonic() - started:.0f} s)")
            return output

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, jobs))
        library = directory / target.name
        # No rpath: torch is loaded before the library is.
        link = (f"-L{Path(torch.__file__).parent / 'lib'}", *LIBRARIES)
        inputs = (*map(str, objects), *link, *words("LDFLAGS"))
        _run([*command, *words("CXXFLAGS"), *_flags(), "-shared", "-o", str(library), *inputs])
        publish(library, target)
    report(f"built in {time.monotonic() - started:.0f} s: {target}")


def compiler_command() -> list[str]:
    """The compiler's command line, on a machine that the native kernel is for.

    Raises:
        BuildError: another machine, or no compiler.
    """
    if platform.system() != "Linux" or not (IS_X86 or IS_AARCH64):
        raise BuildError(
            "the native CPU kernel is for Linux on x86-64 and AArch64, not for "
            f"{platform.system()} {platform.machine()}; the emulated kernel answers there"
        )
    return compiler()


def compiler() -> list[str]:
    """The C++ compiler's command line. ``CXX`` holds one, as make takes it; empty means unset.

    Raises:
        BuildError: it cannot be read, or names a program that is not there.
    """
    wanted = os.environ.get("CXX", "")
    command = words("CXX") or ["g++"]
    program = shutil.which(command[0])
    if program is None:
        received = f"; CXX is {wanted!r}" if wanted.strip() else ""
        raise BuildError(
            f"no C++ compiler: {command[0]} is not on the PATH{received}. Install g++ 11 or newer "
            "(Debian and Ubuntu: apt install g++), or set CXX to another compiler"
        )
    return [program, *command[1:]]


def words(name: str) -> list[str]:
    """``CXX``, ``CXXFLAGS`` or ``LDFLAGS``, as make takes them; empty means unset.

    Raises:
        BuildError: it cannot be read.
    """
    value = os.environ.get(name, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise BuildError(f"{name} is no command line ({error}), got {value!r}") from None


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\nfailed:\n{result.stderr.strip()}")
