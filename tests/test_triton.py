"""The Triton kernels without a GPU: their bytes in the interpreter, and their twins for core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patched_core import load_core
from support import run_tests_of_the_contract

import aten_mx
from aten_mx.backends.triton import elements
from aten_mx.overloads import OVERLOADS

CHECKS = (
    "check_values",
    "check_golden",
    "check_codes",
    "check_layouts",
    "check_block_sizes",
    "check_core",
)
# By default each half of the products runs under one of the two; slow: all under both.
HALF, WHOLE = ("half",), ()


@pytest.mark.proves("Triton, interpreted")
@pytest.mark.parametrize("flush", ["0", "1"])
@pytest.mark.parametrize(
    ("check", "part"),
    [(check, HALF) for check in CHECKS]
    + [pytest.param(check, WHOLE, marks=pytest.mark.slow) for check in (*CHECKS, "check_kit")],
)
def test_bytes(check: str, part: tuple[str, ...], flush: str) -> None:
    program = Path(__file__).with_name("triton_checks.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", program, check, flush, *part],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["test_cases.py", "test_torchao_switch.py -k gives"])
def test_the_contract_in_the_interpreter(selection: str) -> None:
    """The tests of the emulated kernel; TorchAO's casts and the way back through the kernels."""
    run_tests_of_the_contract(selection, ATEN_MX_TEST_CPU="triton")


def test_the_kernels_have_every_scale_mode() -> None:
    assert list(elements.SCALE_MODES) == list(aten_mx.ScaleCalculationMode)


def test_the_patch_to_core_has_every_overload() -> None:
    assert set(load_core()._OVERRIDES) == {row.name for row in OVERLOADS}


def test_the_patch_to_core_takes_valid_calls_alone() -> None:
    """The rest is left to the emulated kernel, whose errors are tested."""
    cond, _ = load_core()._OVERRIDES["quantize_mx"]
    x, e4m3 = torch.empty(4, 64), torch.float8_e4m3fn
    assert cond(x, -1, 32, e4m3, 3) is True
    assert cond(x, 2, 32, e4m3) is False
    assert cond(x, 0, 32, e4m3) is False
    assert cond(x, 1, 24, e4m3) is False
    assert cond(x, 1, 32, torch.int16) is False
    assert cond(x, 1, 32, e4m3, 4) is False
    assert cond(x.double(), 1, 32, e4m3) is False
    assert cond(x.to_sparse(), 1, 32, e4m3) is False
    assert cond(x[:0], 1, 32, e4m3) is False
    cond, _ = load_core()._OVERRIDES["dequantize_mx.format"]
    payload, scale = x.to(torch.uint8), torch.empty(4, 2).to(torch.float8_e8m0fnu)
    assert cond(payload, scale, 1, 32, "fp6_e2m3", x.dtype) is True
    assert cond(payload, scale.view(torch.uint8), 1, 32, "fp6_e2m3", x.dtype) is False
    assert cond(payload, scale[:3], 1, 32, "fp6_e2m3", x.dtype) is False
    assert cond(payload, scale, 1, 32, "fp8_e4m3", x.dtype) is False
    assert cond(payload, scale, 1, 32, "fp6_e2m3", torch.float64) is False
    assert cond(payload, scale, 1, 32, "fp6_e2m3", x.dtype, swizzle_type=1) is False
