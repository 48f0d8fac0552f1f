"""Compiles the patch's C++ as core's build would, for the installed wheel, into one library.

The sources stay as they are: the generated headers come before the wheel's, the kernel file is
compiled once for each instruction set with the real ``DispatchStub.h`` choosing among them, and a
registration generated from the yaml stands in for the one that core's build compiles in.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aten_mx.backends.build import compiler
from aten_mx.backends.recipe import DEFINITIONS, FLAGS, LIBRARIES, Unit, units
from native_functions_patch.codegen import NAMES, NATIVE
from native_functions_patch.manifest import CSRC, new_files


class CompileError(Exception):
    """The compiler refused a file, or a function that the yaml names isn't defined."""


def compile_sources(tree: Path, torch_root: Path, last: int) -> list[Path]:
    """Object files of the C++ of reviews 1 to ``last`` and of the operators' entry points."""
    sources = [file.source for file in new_files(last) if file.source.suffix == ".cpp"]
    if not sources:
        raise CompileError(f"the patch has no .cpp file below {CSRC}")
    entries = tree / "generated" / "operators.cpp"
    entries.write_text(_operators(tree))
    return _compile_all(tree, torch_root, [*units(sources), Unit(entries.stem, entries)])


def link(tree: Path, torch_root: Path, objects: Sequence[Path]) -> tuple[Path, list[str]]:
    """The library: ``objects`` and the registration of what the yaml names.

    Returns:
        library: its path.
        missing: functions that the yaml names and no source defines; they aren't registered.
    """
    text, missing = _registration(tree, _defined(objects))
    registration = tree / "generated" / "registration.cpp"
    registration.write_text(text)
    objects = [*objects, *_compile_all(tree, torch_root, [Unit(registration.stem, registration)])]
    library = tree / "generated" / "libquantize_mx.so"
    libraries = torch_root / "lib"
    _run(
        [
            *(*compiler(), "-shared", "-fopenmp", *map(str, objects), "-o", str(library)),
            *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", *LIBRARIES),
            "-Wl,--no-undefined",
        ]
    )
    return library, missing


def _compile_all(tree: Path, torch_root: Path, jobs: list[Unit]) -> list[Path]:
    include = torch_root / "include"
    flags = [
        *(*FLAGS, *DEFINITIONS),
        f"-I{CSRC / 'aten' / 'src'}",
        *("-isystem", str(tree / "generated")),  # before the wheel's, which lack our operators
        *("-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")),
    ]
    command = compiler()

    def compile_one(unit: Unit) -> Path:
        target = tree / "generated" / f"{unit.name}.o"
        _run([*command, *flags, *unit.flags, "-c", str(unit.source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs))


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(result.stderr.strip()[:3000] or f"{command[0]} failed")


def _operators(tree: Path) -> str:
    """``at::quantize_mx`` and the operators' other entry points, taken from the generated files.

    Core's build compiles all entry points. The wheel's library lacks ours.
    """
    generated = "".join(
        path.read_text() for path in sorted((tree / "generated/ATen").glob("Operators_*.cpp"))
    )
    # Each piece stands below a comment with its schema.
    pieces = re.findall(
        r"^// aten::(?:de)?quantize_mx[.(].*?(?=^// aten::|^\}\}|\Z)", generated, re.M | re.S
    )
    includes = "".join(f"#include <ATen/ops/{name}_ops.h>\n" for name in NAMES)
    head = f"#include <ATen/core/dispatch/Dispatcher.h>\n{includes}namespace at::_ops {{\n"
    return head + "".join(pieces) + "}\n"


def _defined(objects: Sequence[Path]) -> set[str]:
    """Qualified names of the functions in ``objects``."""
    command = ["nm", "--defined-only", "--demangle", *map(str, objects)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" T (at::native::\w+)\(", names))


def _registration(tree: Path, defined: set[str]) -> tuple[str, list[str]]:
    """``TORCH_LIBRARY_FRAGMENT(aten, m)`` with the yaml's schemas, kernels and dispatch keys."""
    from torchgen.api.types import NativeSignature
    from torchgen.gen import parse_native_yaml

    native = tree / NATIVE
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    schemas: list[str] = []
    missing: list[str] = []
    kernels: dict[str, list[str]] = {}
    for function in parsed.native_functions:
        schema = function.func
        if str(schema.name.name) not in NAMES or schema.is_out_fn():
            continue
        tags = ", ".join(f"at::Tag::{tag}" for tag in sorted(function.tags))
        schemas.append(f'  m.def("{schema}", {{{tags}}});')
        pointer = NativeSignature(schema, symint=False).ptr_type()
        for key, index in parsed.backend_indices.items():
            metadata = index.get_kernel(function)
            if metadata is None:
                continue
            kernel = f"{metadata.cpp_namespace}::{metadata.kernel}"
            if kernel not in defined:
                missing.append(f"{kernel} ({key.name} of {schema.name})")
            else:
                kernel = f"static_cast<{pointer}>({kernel})"
                kernels.setdefault(key.name, []).append(f'  m.impl("{schema.name}", {kernel});')
                if key.name == "CompositeImplicitAutograd":  # patches/checkout/02
                    kernels.setdefault("FuncTorchBatchedDecomposition", []).append(
                        f'  m.impl("{schema.name}", {kernel});'
                    )
        # What VariableType does for an op in DONT_REQUIRE_DERIVATIVE, without its checks.
        kernels.setdefault("Autograd", []).append(
            f'  m.impl("{schema.name}", torch::CppFunction::makeFallthrough());'
        )
    lines = ["#include <torch/library.h>"]
    lines += [f"#include <ATen/ops/{name}_native.h>" for name in NAMES]
    lines += ["TORCH_LIBRARY_FRAGMENT(aten, m) {", *schemas, "}"]
    for key, registrations in kernels.items():
        lines += [f"TORCH_LIBRARY_IMPL(aten, {key}, m) {{", *registrations, "}"]
    return "\n".join(lines) + "\n", missing
