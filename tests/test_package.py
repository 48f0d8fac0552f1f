"""The wheel: what it carries, and that it works without the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import run_python

import aten_mx

ROOT = Path(__file__).parents[1]
BUILD_PARTS = ("aten_mx", "pyproject.toml", "README.md", "LICENSE")

INSTALLED = """
import sys
import torch
import aten_mx
from aten_mx.backends import build, cpu
from aten_mx.testing import check_kernel, golden

assert aten_mx.__file__.startswith(sys.argv[1]), aten_mx.__file__
assert {"register.cpp", "QuantizeMXKernel.cpp"} <= {path.name for path in build._sources()}
assert len(golden.read_vectors()) > 1000
report = check_kernel("cpu", checks=["errors"])
assert report.passed, report
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy, so that no build folder is left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in BUILD_PARTS:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*pip, folder / "dist", folder], check=True, capture_output=True)
    (found,) = (folder / "dist").iterdir()
    return found


def test_contents(wheel: Path) -> None:
    assert wheel.name == f"aten_mx-{aten_mx.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    patterns = ("aten_mx/**/*.py", "aten_mx/csrc/**/*.cpp", "aten_mx/csrc/**/*.h", "aten_mx/data/*")
    for pattern in patterns:
        expected = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
        assert expected
        assert expected <= names, pattern
    assert "aten_mx/py.typed" in names
    assert not any(
        name.startswith(("tests/", "benchmarks/", "examples/", "native_")) for name in names
    )


def test_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, tmp_path, wheel], check=True, capture_output=True)
    assert run_python(INSTALLED, str(tmp_path), cwd=tmp_path, PYTHONPATH=str(tmp_path)) == "works\n"
