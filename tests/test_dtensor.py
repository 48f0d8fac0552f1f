"""The ops on sharded tensors: groups of two and four processes run the checks of two files."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support import run_python

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the groups are forked")


def run_group(world_size: int, file: str, *checks: str, **environment: str) -> None:
    """Run ``checks`` of ``file`` in every process of a group, where a warning is an error."""
    command = [sys.executable, "-W", "error", str(HERE / file), str(world_size), *checks]
    environ = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    result = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"passed: {' '.join(checks)}"


ON_ANY_NUMBER = {
    "sharding_checks.py": ("placements", "dequantize"),
    "parallel_checks.py": ("tensor_parallel", "colwise_and_rowwise", "fsdp"),
}


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ON_ANY_NUMBER)
def test_a_group(file: str, world_size: int) -> None:
    run_group(world_size, file, *ON_ANY_NUMBER[file])


@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("sharding_checks.py", "two_dimensions"),
        ("parallel_checks.py", "fsdp_and_tensor_parallel"),
    ],
)
def test_a_mesh_of_two_dimensions(file: str, check: str) -> None:
    run_group(4, file, check)


def test_checkpoint_errors_kernel_and_compiler() -> None:
    run_group(2, "sharding_checks.py", "checkpoint", "errors", "kernel", "compiled")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 only")
def test_native_kernel(native_build: dict[str, str]) -> None:
    run_group(2, "sharding_checks.py", "placements", "errors", "compiled", **native_build)


IMPORTS = """
import sys, warnings
warnings.simplefilter("error")
exec(sys.argv[1])
import torch
from torch.distributed.tensor import DTensor
known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
print(torch.ops.aten_mx.quantize_mx.default in known)
"""


@pytest.mark.parametrize(
    "first",
    [
        "import aten_mx, torch.distributed.tensor",
        "import torch.distributed.tensor, aten_mx",
        "import aten_mx.integrations.dtensor",
    ],
)
def test_rules_come_with_dtensor(first: str) -> None:
    assert run_python(IMPORTS, first) == "True\n"


def test_importing_the_package_does_not_import_dtensor() -> None:
    program = "import sys, aten_mx; print('torch.distributed.tensor' in sys.modules)"
    assert run_python(program) == "False\n"
