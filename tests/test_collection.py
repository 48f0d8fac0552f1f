"""A broken kernel is a failed test that says what broke, not a file that cannot be collected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import run_pytest

RUNS_A_KERNEL = """
import torch, aten_mx
outputs = aten_mx.quantize_mx(torch.ones(1, 32))
"""


@pytest.mark.slow  # It imports every file of the tests.
def test_no_kernel_runs_at_collection(tmp_path: Path) -> None:
    """Of all files and this one, this one alone is an error."""
    file = tmp_path / "test_that_runs_a_kernel.py"
    file.write_text(RUNS_A_KERNEL)
    result = run_pytest("--collect-only", "-p", "raising_kernels", ".", str(file))
    found = re.findall(r"^_+ ERROR collecting (.+) _+$", result.stdout, re.MULTILINE)
    assert set(found) == {"test session"}, result.stdout + result.stderr  # a file outside of it
    assert f"{file.name}:3: in <module>" in result.stdout
    assert "AssertionError: a kernel ran" in result.stdout
