"""How the C++ is compiled: flags, definitions and units.

One description for both builds: that of the package's native kernel (``build.py``) and that of the
check of the patch to PyTorch core, which compiles the same sources.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

IS_X86 = platform.machine() in ("x86_64", "AMD64")
IS_AARCH64 = platform.machine() in ("aarch64", "arm64")


# DispatchStub chooses among these at run time. Both lists are PyTorch's (aten/src/ATen/
# CMakeLists.txt and cmake/Codegen.cmake): with other definitions libtorch's DispatchStub has
# another signature, and the library does not load.
def _capabilities() -> dict[str, tuple[str, ...]]:
    if IS_X86:
        return {
            "DEFAULT": (),
            "AVX2": ("-mavx2", "-mfma", "-mf16c"),
            "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        }
    if IS_AARCH64:
        # Which there are depends on the release. The vectors are NEON's in each of them.
        stub = Path(torch.__file__).parent / "include/ATen/native/DispatchStub.h"
        text = stub.read_text()
        return {name: () for name in ("DEFAULT", "SVE128", "SVE256") if name in text}
    return {"DEFAULT": ()}


_OF_THE_MACHINE: tuple[str, ...] = ()
if IS_X86:
    _OF_THE_MACHINE = ("-DHAVE_AVX2_CPU_DEFINITION", "-DHAVE_AVX512_CPU_DEFINITION")
elif IS_AARCH64 and platform.system() == "Linux":
    _OF_THE_MACHINE = ("-DHAVE_SVE_CPU_DEFINITION",)
DEFINITIONS = (
    *_OF_THE_MACHINE,
    "-DAT_PER_OPERATOR_HEADERS",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-DNDEBUG"),
    # As PyTorch compiles its CPU kernels. With contraction a result would depend on FMA. Both come
    # after a user's CXXFLAGS, of which no byte may depend.
    *("-ffp-contract=off", "-fno-fast-math"),
    # Without alignment the kernel along dim=0 took up to twice as long, depending on the format and
    # on the addresses of its loops.
    *("-falign-functions=64", "-falign-loops=64"),
)
WARNINGS = (
    *("-Wall", "-Wextra", "-Werror"),
    # GCC 12 warns about its own AVX-512 intrinsics (its bug 105593). They can go with GCC 12.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
"""For our own files. PyTorch's headers are system headers to the compiler, which reports none."""

LIBRARIES = ("-ltorch_cpu", "-lc10")


class Unit(NamedTuple):
    """One object file."""

    name: str
    source: Path
    flags: tuple[str, ...] = ()


def units(sources: Iterable[Path]) -> list[Unit]:
    """The object files of these sources: those in ``native/cpu`` once per instruction set.

    The longest come first, so that the last one to finish is a short one.
    """
    capabilities = _capabilities()
    kernels: list[Unit] = []
    others: list[Unit] = []
    for source in sources:
        if source.parent.name != "cpu":
            others.append(Unit(source.stem, source, WARNINGS))
            continue
        for name, flags in reversed(capabilities.items()):
            definitions = (f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}")
            kernels.append(Unit(f"{source.stem}.{name}", source, (*WARNINGS, *definitions, *flags)))
    return [*kernels, *others]
