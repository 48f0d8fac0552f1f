"""Compiles the native CPU kernel: sources, units, flags, and how they become a library."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

_PACKAGE = Path(__file__).parents[1]
_ATEN = _PACKAGE / "csrc" / "aten" / "src"
_NATIVE = _ATEN / "ATen" / "native"
_KERNEL = _NATIVE / "cpu" / "QuantizeMXKernel.cpp"
_HEADERS = sorted((_PACKAGE / "csrc").rglob("*.h"))
_ONCE = (
    _NATIVE / "quantized" / "QuantizeMX.cpp",
    _NATIVE / "quantized" / "QuantizeMXValidation.cpp",
    _PACKAGE / "csrc" / "alone.cpp",
    _PACKAGE / "csrc" / "register.cpp",
)

# DispatchStub chooses among these at run time. Both lists are PyTorch's (aten/src/ATen/
# CMakeLists.txt and cmake/Codegen.cmake): with other definitions libtorch's DispatchStub has
# another signature, and the library doesn't load.
_CAPABILITIES = {
    "DEFAULT": (),
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
}
_DEFINITIONS = (
    "-DHAVE_AVX2_CPU_DEFINITION",
    "-DHAVE_AVX512_CPU_DEFINITION",
    "-DAT_PER_OPERATOR_HEADERS",
)
# Alignment: without it the kernel along dim=0 took up to twice as long, for one format or another,
# by where its loops happened to lie.
_FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-DNDEBUG", "-Wall", "-Wextra", "-Werror"),
    # GCC 12 finds its own AVX-512 intrinsics uninitialized, which they are on purpose.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    # GCC warns about its own AVX-512 intrinsics (its bug 105593); PyTorch builds without it too.
    "-Wno-maybe-uninitialized",
    *("-falign-functions=64", "-falign-loops=64"),
)
_LIBRARIES = ("-ltorch_cpu", "-lc10")


class BuildError(RuntimeError):
    """The kernel cannot be built here; the text says why."""


class _Unit(NamedTuple):
    """One object file."""

    name: str
    source: Path
    flags: tuple[str, ...] = ()


def _units() -> list[_Unit]:
    # The longest first, so that the last one to finish is a short one.
    kernels = [
        _Unit(
            f"{_KERNEL.stem}.{name}",
            _KERNEL,
            (f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}", *flags),
        )
        for name, flags in reversed(_CAPABILITIES.items())
    ]
    return [*kernels, *(_Unit(source.stem, source) for source in _ONCE)]


def _flags() -> list[str]:
    abi = int(torch.compiled_with_cxx11_abi())
    extra = os.environ.get("ATEN_MX_CXXFLAGS", "").split()  # the fuzzer's sanitizers
    return [*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *_DEFINITIONS, *extra]


@functools.cache
def key() -> str:
    """What the library depends on, but for the compiler: any that can build it will do."""
    digest = hashlib.sha256()
    commands = [*_flags(), *_LIBRARIES, *(flag for unit in _units() for flag in unit.flags)]
    digest.update("\0".join((platform.machine(), *commands)).encode())
    for source in (*_HEADERS, _KERNEL, *_ONCE):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(compiler: str, target: Path, report: Callable[[str], None]) -> None:
    units = _units()
    started = time.monotonic()
    # In the target's own directory: a move within one file system is atomic.
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as scratch:
        directory = Path(scratch)
        report(f"compiling {len(units)} files with {compiler} for torch {torch.__version__}")

        def compile_unit(unit: _Unit) -> Path:
            output = directory / f"{unit.name}.o"
            include = Path(torch.__file__).parent / "include"
            paths = (f"-I{_ATEN}", f"-isystem{include}")
            files = ("-c", str(unit.source), "-o", str(output))
            _run([compiler, *_flags(), *unit.flags, *paths, *files])
            report(f"  {unit.name} ({time.monotonic() - started:.0f} s)")
            return output

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, units))
        library = directory / target.name
        # No rpath: torch is loaded before the library is.
        link = (f"-L{Path(torch.__file__).parent / 'lib'}", *_LIBRARIES)
        _run([compiler, *_flags(), "-shared", *map(str, objects), "-o", str(library), *link])
        library.replace(target)
    report(f"built in {time.monotonic() - started:.0f} s: {target}")


def compiler_command() -> str:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BuildError(
            f"the native CPU kernel is for x86-64 Linux, not for {platform.system()} "
            f"{platform.machine()}; the emulated kernel answers there"
        )
    wanted = os.environ.get("CXX", "g++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise BuildError(
            f"no C++ compiler: {wanted} is not on the PATH. Install g++ 11 or newer (Debian and "
            "Ubuntu: apt install g++), or set CXX to another compiler"
        )
    return compiler


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nfailed:\n{result.stderr.strip()}")
