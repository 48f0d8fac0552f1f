"""What several test files need: a kernel beside the emulated one, and a fresh process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import aten_mx

TORCHAO_PATCH = Path(__file__).parents[1] / "rfc" / "torchao.patch"


@contextlib.contextmanager
def cpu_kernel() -> Iterator[None]:
    """A kernel keeps the op one node; this one gives the emulated kernel's bytes."""
    op = torch.ops.aten_mx.quantize_mx.default
    library = torch.library.Library("aten_mx", "IMPL")
    library.impl("quantize_mx", aten_mx.decomposition_table()[op], "CPU")
    try:
        yield
    finally:
        library._destroy()


def run_python(program: str, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """What ``program`` prints in a process of its own; the test fails if that one does."""
    result = _run(["-c", program, *arguments], cwd, environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_tests_of_the_contract(selection: str, **environment: str) -> None:
    """Tests of the emulated kernel in a process of their own, whose environment says on which."""
    result = run_pytest(*selection.split(), **environment)
    assert result.returncode == 0, result.stdout


def run_pytest(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, in the folder of the tests."""
    always = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    return _run([*always, *options], Path(__file__).parent, environment)


def _run(
    arguments: list[str], cwd: Path | None, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = os.environ | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def case(*what: object) -> Iterator[None]:
    """One of many cases that a test goes through; a failure says which."""
    try:
        yield
    except Exception as error:
        name = ", ".join(map(str, what))
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def apply_patch(patch: Path, folder: Path) -> None:
    """Apply a patch to the packages in ``folder``, whatever repository that lies in."""
    alone = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", str(patch)], cwd=folder, env=os.environ | alone, check=True)
