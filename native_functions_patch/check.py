"""Proves the patch on the installed wheel without a checkout, applies it, or writes it out.

    python -m native_functions_patch.check [--review N] [--keep] [--wheel DIR]
    python -m native_functions_patch.check [--review N] --source DIR
    python -m native_functions_patch.check --out DIR

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

from aten_mx.backends.build import BuildError, compiler
from native_functions_patch import codegen, compiling
from native_functions_patch.manifest import ALL, PATCH_ROOT, REVIEWS
from native_functions_patch.overlay import make_overlay
from native_functions_patch.report import FAIL, NOTE, Report
from native_functions_patch.tree import PatchError, apply_patches, lay_out
from native_functions_patch.writing import write_change

CANNOT_RUN = 2
# What PyTorch's torchgen (the first) and tests (the others) import: modules by package.
NEEDED = {"pyyaml": "yaml", "expecttest": "expecttest", "numpy": "numpy"}


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    fault = _fault(options)
    if fault:
        print(f"cannot run: {fault}", file=sys.stderr)
        return CANNOT_RUN
    report = Report()
    if options.source is not None:
        report.step("apply", lambda: _apply_to_checkout(options.source, options.review))
        return int(report.failed)
    if options.out is not None:
        import torch

        site, version = Path(torch.__file__).parents[1], str(torch.__version__)
        report.step("written", lambda: write_change(site, options.out, version))
        return int(report.failed)

    tree = Path(tempfile.mkdtemp(prefix="quantize_mx_patch_"))
    try:
        _check(report, tree, options.wheel, options.review)
    finally:
        if options.keep:
            report.line(NOTE, "tree", str(tree))
        else:
            shutil.rmtree(tree)
    print(f"{'FAILED' if report.failed else 'all passed'}")
    return int(report.failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m native_functions_patch.check", description=__doc__.splitlines()[0]
    )
    titles = ", ".join(f"{review.number} {review.title}" for review in REVIEWS)
    parser.add_argument(
        "--review",
        type=int,
        choices=[review.number for review in REVIEWS],
        default=ALL,
        help=f"the reviews up to this one alone: {titles} (default: all)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the tree, and say where it is")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--source", type=Path, help="apply to this PyTorch checkout instead")
    what.add_argument(
        "--wheel",
        type=Path,
        help="directory of an unpacked wheel of another release; nothing is compiled or run",
    )
    what.add_argument(
        "--out", type=Path, help="write the whole change to this empty directory instead"
    )
    return parser


def _fault(options: argparse.Namespace) -> str | None:
    """Why this run cannot be done, or ``None``."""
    if shutil.which("git") is None:
        return "git is needed to apply the diffs, and isn't on the PATH"
    if importlib.util.find_spec("torch") is None:
        return "torch isn't installed"
    source, out = options.source, options.out
    if source is not None:
        is_checkout = (source / "torch").is_dir() and (source / codegen.NATIVE).is_dir()
        return None if is_checkout else f"{source} is not a PyTorch checkout"
    if out is not None:
        if out.exists() and not out.is_dir():
            return f"{out} is not a directory"
        return f"{out} isn't empty" if out.is_dir() and any(out.iterdir()) else None
    return None if options.wheel is not None else _missing()


def _missing() -> str | None:
    """What building and running lacks."""
    absent = [name for name, module in NEEDED.items() if importlib.util.find_spec(module) is None]
    if absent:
        return f"PyTorch's torchgen and tests need more: pip install {' '.join(absent)}"
    try:
        compiler()
    except BuildError as error:
        return str(error)
    return None


def _check(report: Report, tree: Path, wheel: Path | None, last: int) -> None:
    import torch

    torch_root = Path(torch.__file__).parent
    site = wheel or torch_root.parent
    report.line(NOTE, "wheel", str(wheel) if wheel else f"torch {torch.__version__}")
    report.line(NOTE, "reviews", ", ".join(review.name for review in REVIEWS[:last]))
    if not report.step("tree", lambda: f"{lay_out(site, tree)} files"):
        return
    changed: list[str] = []

    def apply() -> str:
        changed.extend(apply_patches(tree, last))
        return f"{len(changed)} files changed or added"

    if not report.step("patches", apply):
        return
    report.step("Python files", lambda: _compile_python(tree, changed))
    if not report.step("schemas", lambda: codegen.check_schemas(tree)):
        return
    generated = report.step("torchgen", lambda: codegen.run_torchgen(tree))
    if generated:
        report.step("C++ signatures", lambda: codegen.check_cpp_signatures(tree))
    if report.step("autograd and bindings", lambda: codegen.run_autograd(tree)):
        report.step("Python signatures", lambda: codegen.check_python_signatures(tree))
        report.step("not differentiable", lambda: codegen.check_autograd(tree))
    if generated and wheel is None:
        library = _build(report, tree, torch_root, last)
        if library is not None:
            overlay = make_overlay(torch_root.parent, tree, changed)
            _run(report, tree, overlay, library, last)


def _apply_to_checkout(source: Path, last: int) -> str:
    return "\n  ".join(["", *apply_patches(source, last, checkout=True)])


def _compile_python(tree: Path, changed: list[str]) -> str:
    files = sorted(path for path in changed if path.endswith(".py"))
    for path in files:
        compile((tree / path).read_text(), path, "exec")
    return f"{len(files)} compile"


def _build(report: Report, tree: Path, torch_root: Path, last: int) -> Path | None:
    """Compile and link; the library, or ``None`` where that failed."""
    objects: list[Path] = []
    built: list[Path] = []
    missing: list[str] = []

    def build() -> str:
        objects.extend(compiling.compile_sources(tree, torch_root, last))
        return f"{len(objects)} object files"

    def link() -> str:
        library, undefined = compiling.link(tree, torch_root, objects)
        built.append(library)
        missing.extend(undefined)
        return library.name

    def all_defined() -> str:
        if missing:
            raise PatchError(f"the yaml names {', '.join(missing)}, and no source defines them")
        return "every function that the yaml names"

    if not report.step("compile", build) or not report.step("link", link):
        return None
    return built[0] if report.step("kernels", all_defined) else None


def _run(report: Report, tree: Path, overlay: Path, library: Path, last: int) -> None:
    """Run the ops of the library, in processes of their own."""
    paths = (str(overlay), str(PATCH_ROOT.parent), *sys.path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    programs = [("runtime", str(library), str(tree), str(last))]
    if last >= 3:  # Triton reads this setting when it is imported
        programs.append(("runtime_triton", str(library)))
        environment["TRITON_INTERPRET"] = "1"
    for name, *arguments in programs:
        command = [sys.executable, "-m", f"native_functions_patch.{name}", *arguments]
        own = environment if name == "runtime_triton" else environment | {"TRITON_INTERPRET": "0"}
        returncode = subprocess.run(command, env=own, check=False).returncode
        if returncode not in (0, 1):
            report.line(FAIL, name, f"the process ended with {returncode}")
        report.failed |= returncode != 0


if __name__ == "__main__":
    sys.exit(main())
