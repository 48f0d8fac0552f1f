"""The conformance kit: right kernels pass, each wrong one is caught, and the command says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import write_golden_vectors
from mutants import MUTANTS
from telling_kernels import registered

import aten_mx
from aten_mx import emulated
from aten_mx.__main__ import main
from aten_mx.formats import FORMATS
from aten_mx.testing import CHECKS, Result, check_kernel
from aten_mx.testing.golden import read_vectors
from aten_mx.testing.graph_checks import flushed_subnormals

# By the time they take: most wrong kernels are caught before the last.
BYTES = ["codes", "swizzled", "golden", "layouts", "maxima"]
EXAMPLE = Path(__file__).parent.parent / "examples" / "python_backend"


def test_the_golden_file_is_that_of_the_cases() -> None:
    assert write_golden_vectors.PATH.read_text() == write_golden_vectors.text(), (
        "run: python tests/write_golden_vectors.py"
    )


def test_names_of_golden_vectors_are_unique() -> None:
    keys = [(v.op, v.name, v.elem_format, v.modes, v.dtype, v.scale) for v in read_vectors()]
    assert len(keys) == len(set(keys))


class Caught(Exception):
    """The kit has found the wrong kernel; the rest of its run is not needed."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_is_caught(name: str) -> None:
    mutant = MUTANTS[name]

    def stop_at_a_failure(result: Result) -> None:
        if not result.passed:
            raise Caught

    with registered(mutant.op, "CPU", mutant.kernel()), pytest.raises(Caught):
        check_kernel("cpu", [mutant.op], checks=BYTES, progress=stop_at_a_failure)


def test_a_mismatch_is_named() -> None:
    """Its case, the input's bits and both bytes."""
    mutant = MUTANTS["minus zero loses its sign"]
    handle = aten_mx.register_kernel(mutant.op, "CPU", mutant.kernel())
    try:
        report = check_kernel("cpu", ["quantize_mx"], checks=["golden"])
    finally:
        handle.unregister()
    first = report.failures[0]
    assert first.name == "golden: quantize_mx fp8_e4m3 floor float32 dim=-1 scale=00: zeros_signed"
    assert first.mismatch == (
        "1 of 1 blocks differ; block 0: input 00000000 80000000 80000000 00000000 80000000 "
        "80000000 00000000 80000000 ...; scale 00, expected 00; codes from byte 1: "
        "00 00 00 00 00 00 00 00 ..., expected 80 80 00 80 80 00 80 80 ..."
    )
    assert str(report).splitlines()[-1].endswith(f"{len(report.failures)} failed")


def test_a_kernel_that_raises_fails_its_cases_alone() -> None:
    def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):
        if elem_format == "int8":
            raise NotImplementedError("no INT8 here")
        return emulated.quantize_mx(self, dim, block_size, elem_format, mode)

    handle = aten_mx.register_kernel("quantize_mx", "CPU", kernel)
    try:
        report = check_kernel("cpu", ["quantize_mx"], checks=["golden"])
    finally:
        handle.unregister()
    assert {r.mismatch for r in report.failures} == {"NotImplementedError: no INT8 here"}
    assert report.failures == [r for r in report.results if " int8 " in r.name]


EXHAUSTIVE = {"maxima", "flush_to_zero"}  # test_emulated.py asks the same of the oracle


@pytest.mark.proves("emulated")
@pytest.mark.parametrize(
    "left_out", [EXHAUSTIVE, pytest.param(set(), marks=pytest.mark.slow)], ids=["most", "all"]
)
def test_the_emulated_kernel_passes(left_out: set[str]) -> None:
    """On the CPU, all checks but those that compile (other tests do); one report."""
    names = set(CHECKS) - left_out - {"compiled"}
    report = check_kernel("cpu", checks=[name for name in CHECKS if name in names])
    assert report.passed, str(report)
    assert {result.name.split(":")[0] for result in report.results} == names


def test_flushing_ends_with_its_context() -> None:
    """Subnormals are as before in every thread."""
    with flushed_subnormals():
        torch.full((1 << 20,), 1e-40).mul(1)
    assert torch.full((1 << 20,), 1e-40).mul(1).count_nonzero() == 1 << 20


@pytest.mark.parametrize(
    "arguments", [{"ops": ["quantize"]}, {"checks": ["speed"]}], ids=["op", "check"]
)
def test_unknown_names(arguments: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match=r"check_kernel: (quantize|speed) is none of "):
        check_kernel("cpu", **arguments)


def conformance(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aten_mx", "conformance", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.proves("example in NumPy")
def test_the_example_in_one_file_passes(tmp_path: Path) -> None:
    """``examples/python_backend``, through the command, all checks; the JSON has every case."""
    assert len((EXAMPLE / "numpy_backend.py").read_text().splitlines()) < 60
    file = tmp_path / "report.json"
    run = conformance(
        *("--device", "cpu", "--ops", "quantize_mx", "--import", "numpy_backend"),
        *("--json", str(file)),
        PYTHONPATH=str(EXAMPLE),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[0] == "quantize_mx: Python function numpy_backend.quantize (CPU)"
    report = json.loads(file.read_text())
    assert report["failed"] == 0
    assert report["passed"] == len(report["cases"]) > 10_000
    assert {case["verdict"] for case in report["cases"]} == {"pass"}
    assert {case["check"] for case in report["cases"]} == set(CHECKS) - {"codes"}


def test_mismatches_exit_with_1(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import aten_mx\n"
        "from aten_mx import emulated\n"
        "def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):\n"
        "    return emulated.quantize_mx(self, dim, block_size, elem_format, 0)\n"
        "aten_mx.register_kernel('quantize_mx', 'CPU', kernel)\n"
    )
    run = conformance(
        *("--device", "cpu", "--checks", "golden", "--import", "wrong"), PYTHONPATH=str(tmp_path)
    )
    assert run.returncode == 1
    assert "FAIL golden: quantize_mx fp8_e4m3 ceil" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "nonsense"], "nonsense"),
        (["--device", "meta"], "no bytes to check"),
        (["--device", "cpu", "--compile-backend", "nope"], "no compile backend nope"),
        (["--device", "cpu", "--import", "json:nothing"], "nothing"),
        (["--device", "cpu", "--import", "json"], "json has registered no kernel for cpu"),
        (["--device", "cpu", "--import", "no_such_module"], "no_such_module"),
        (["--device", "cpu", "--checks", "errors", "--json", "/no/such/folder/x"], "/no/such"),
    ],
)
def test_a_run_that_fails_gives_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.splitlines()[-1].startswith("aten_mx conformance: ")
    assert text in errors
    assert "Traceback" not in errors


def test_the_kernels_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "aten_mx", "kernels"], capture_output=True, text=True, check=True
    )
    header, *rows, native, triton = run.stdout.splitlines()
    assert native == "The emulated kernel answers on CPU; the native one: python -m aten_mx build"
    assert triton == "The Triton kernel for CUDA and XPU answers from the device's first use on"
    assert header.split("  ")[0] == "op"
    assert [row.split()[0] for row in rows] == [row.op for row in aten_mx.kernels()]


def test_the_kernels_command_imports_a_backend() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "aten_mx", "kernels", "--import", "numpy_backend"],
        env=os.environ | {"PYTHONPATH": str(EXAMPLE)},
        capture_output=True,
        text=True,
        check=True,
    )
    row = ["quantize_mx", "CPU", "Python", "function", "numpy_backend.quantize", "one", "node"]
    assert run.stdout.splitlines()[1].split()[: len(row)] == row


def test_an_emulated_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--device", "cpu", "--checks", "errors"]) == 0
    assert "tests no kernel of cpu" in capsys.readouterr().err


def test_a_reused_output_is_caught() -> None:
    """A kernel that writes every call's output to the same memory."""
    memory: dict[tuple[object, ...], torch.Tensor] = {}

    def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):
        output, scale = emulated.quantize_mx(self, dim, block_size, elem_format, mode)
        kept = memory.setdefault((output.shape, output.stride(), output.dtype), output)
        kept.view(torch.uint8).copy_(output.view(torch.uint8))
        return kept, scale

    handle = aten_mx.register_kernel("quantize_mx", "CPU", kernel)
    try:
        report = check_kernel("cpu", ["quantize_mx"], checks=["fresh_outputs"])
    finally:
        handle.unregister()
    assert len(report.failures) == len(report.results) == len(FORMATS)
