"""Proves the patch on the installed wheel, without a PyTorch checkout, or applies it to one.

    python -m native_functions_patch.check [--keep] [--source DIR | --wheel DIR]

Exit code 0: every step passed; 1: one failed; 2: the run itself could not be done.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from native_functions_patch import codegen, compiling
from native_functions_patch.overlay import make_overlay
from native_functions_patch.report import FAIL, NOTE, Report
from native_functions_patch.tree import (
    PATCH_ROOT,
    PATCHES,
    PatchError,
    apply_patches,
    changed_paths,
    lay_out,
    new_files,
    patch_files,
)

CANNOT_RUN = 2
# What PyTorch's torchgen (the first) and tests (the others) import: modules by package.
NEEDED = {"pyyaml": "yaml", "expecttest": "expecttest", "numpy": "numpy"}


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m native_functions_patch.check", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--source", type=Path, help="apply to this PyTorch checkout instead")
    parser.add_argument("--keep", action="store_true", help="keep the tree, and say where it is")
    parser.add_argument(
        "--wheel",
        type=Path,
        help="directory of an unpacked wheel of another release; nothing is compiled or run",
    )
    options = parser.parse_args(arguments)
    fault = _missing_tool(needs_all=options.source is None and options.wheel is None)
    if fault:
        print(f"cannot run: {fault}", file=sys.stderr)
        return CANNOT_RUN
    if options.source is not None:
        return _apply_to_checkout(options.source)

    tree = Path(tempfile.mkdtemp(prefix="quantize_mx_patch_"))
    report = Report()
    try:
        _check(report, tree, options.wheel)
    finally:
        if options.keep:
            report.line(NOTE, "tree", str(tree))
        else:
            shutil.rmtree(tree)
    print(f"{'FAILED' if report.failed else 'all passed'}")
    return int(report.failed)


def _missing_tool(*, needs_all: bool) -> str | None:
    if not PATCHES.is_dir():
        return "the installed package has no diffs: run this in the root of the repository"
    if shutil.which("git") is None:
        return "git is needed to apply the diffs, and isn't on the PATH"
    absent = [name for name, module in NEEDED.items() if importlib.util.find_spec(module) is None]
    if needs_all and absent:
        return f"PyTorch's torchgen and tests need more: pip install {' '.join(absent)}"
    if needs_all and compiling.compiler() is None:
        return "no C++ compiler: install g++, or set CXX"
    if importlib.util.find_spec("torch") is None:
        return "torch isn't installed"
    return None


def _apply_to_checkout(source: Path) -> int:
    if not (source / "torch").is_dir() or not (source / codegen.NATIVE).is_dir():
        print(f"cannot run: {source} is no PyTorch checkout", file=sys.stderr)
        return CANNOT_RUN
    report = Report()
    report.step("apply", lambda: "\n  ".join(["", *apply_patches(source, checkout=True)]))
    return int(report.failed)


def _check(report: Report, tree: Path, wheel: Path | None) -> None:
    import torch

    torch_root = Path(torch.__file__).parent
    site = wheel or torch_root.parent
    report.line(NOTE, "wheel", str(wheel) if wheel else f"torch {torch.__version__}")
    if not report.step("tree", lambda: f"{lay_out(site, tree)} files"):
        return
    if not report.step("patches", lambda: f"{len(apply_patches(tree))} files changed or added"):
        return
    report.step("Python files", lambda: _compile_python(tree))
    if not report.step("schemas", lambda: codegen.check_schemas(tree)):
        return
    generated = report.step("torchgen", lambda: codegen.run_torchgen(tree))
    if generated:
        report.step("C++ signatures", lambda: codegen.check_cpp_signatures(tree))
    if report.step("autograd and bindings", lambda: codegen.run_autograd(tree)):
        report.step("Python signatures", lambda: codegen.check_python_signatures(tree))
        report.step("not differentiable", lambda: codegen.check_autograd(tree))
    if generated and wheel is None:
        _build_and_run(report, tree, torch_root)


def _compile_python(tree: Path) -> str:
    paths = {path for patch in patch_files(tree) for path in changed_paths(patch)}
    paths |= set(new_files())
    files = sorted(path for path in paths if path.endswith(".py"))
    for path in files:
        compile((tree / path).read_text(), path, "exec")
    return f"{len(files)} compile"


def _build_and_run(report: Report, tree: Path, torch_root: Path) -> None:
    objects: list[Path] = []

    def build() -> str:
        objects.extend(compiling.compile_sources(tree, torch_root))
        return f"{len(objects)} object files"

    built: list[Path] = []
    missing: list[str] = []

    def link() -> str:
        library, undefined = compiling.link(tree, torch_root, objects)
        built.append(library)
        missing.extend(undefined)
        return library.name

    if not report.step("compile", build) or not report.step("link", link):
        return

    def all_defined() -> str:
        if missing:
            raise PatchError(f"the yaml names {', '.join(missing)}, and no source defines them")
        return "every function that the yaml names"

    if not report.step("kernels", all_defined):
        return
    overlay = make_overlay(torch_root.parent, tree)
    paths = (str(overlay), str(PATCH_ROOT.parent), *sys.path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "native_functions_patch.runtime"]
    process = subprocess.run([*command, str(built[0]), str(tree)], env=environment, check=False)
    if process.returncode not in (0, 1):
        report.line(FAIL, "run", f"the process ended with {process.returncode}")
    report.failed |= process.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
