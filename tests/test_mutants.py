"""Rules of the package's structure: with one of them broken, the named test fails.

The mutants of ``mutants.py`` are wrong kernels. These are wrong sources, each tried in a copy of
the package and in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


class SourceMutant(NamedTuple):
    """``old`` stands once in ``file``; with ``new`` in its place ``test`` must fail."""

    file: str
    old: str
    new: str
    test: str


MUTANTS = {
    # One table of overloads.
    "an overload is not in the table": SourceMutant(
        "aten_mx/overloads.py",
        """        emulate_dequantize,
        _base_of_dequantize,
    ),
)""",
        """        emulate_dequantize,
        _base_of_dequantize,
    ),
)[:3]""",
        "test_dispatch.py::test_schemas",
    ),
    "a schema has one more default": SourceMutant(
        "aten_mx/overloads.py",
        '"(Tensor self, Tensor scale, int dim, int block_size, ScalarType dtype) -> Tensor"',
        '"(Tensor self, Tensor scale, int dim, int block_size=32, ScalarType dtype=6) -> Tensor"',
        "test_dispatch.py::test_schemas",
    ),
    "an operator has no cases in the kit": SourceMutant(
        "aten_mx/testing/checks.py",
        '        for op in target.ops:\n            name = f"swizzled:',
        '        for op in target.ops[:0]:\n            name = f"swizzled:',
        "test_overloads.py::test_the_conformance_kit_has_cases_of_each_operator",
    ),
    "vmap leaves dim where it was": SourceMutant(
        "aten_mx/transforms.py",
        "arguments[dim_at] = args[dim_at] % len(shapes[0]) + 1",
        "arguments[dim_at] = args[dim_at] % len(shapes[0])",
        "test_transforms.py",
    ),
    "the base overload's kernel is not asked": SourceMutant(
        "aten_mx/dispatch.py",
        "forwards = row.to_base is not None and ",
        "forwards = False and row.to_base is not None and ",
        "test_dispatch.py::test_a_kernel_is_reached_by_both_overloads",
    ),
    # A call is validated, and once.
    "kernels run without validation": SourceMutant(
        "aten_mx/dispatch.py",
        "        check(*args, **kwargs)\n        # The guard",
        "        # The guard",
        "test_dispatch.py::test_a_kernel_runs_behind_validation",
    ),
    "the emulated kernel runs without validation": SourceMutant(
        "aten_mx/dispatch.py",
        "        if unvalidated:\n",
        "        if False:\n",
        "test_overloads.py::test_a_call_is_validated_once",
    ),
    "the emulated kernel validates once more": SourceMutant(
        "aten_mx/dispatch.py",
        "        if unvalidated:\n",
        "        if True:\n",
        "test_overloads.py::test_a_call_is_validated_once",
    ),
    "a registered kernel validates once more": SourceMutant(
        "aten_mx/registry.py",
        "call, tensors = describe(*args, **kwargs), args[:tensor_count]",
        "call, tensors = row.describe_checked(*args, **kwargs), args[:tensor_count]",
        "test_overloads.py::test_a_call_is_validated_once",
    ),
    "the meta kernel validates once more": SourceMutant(
        "aten_mx/schema.py",
        '_fake(_row.describe), "Meta"',
        '_fake(_row.describe_checked), "Meta"',
        "test_overloads.py::test_a_call_is_validated_once",
    ),
    "the address of 0.1.0 is another kernel": SourceMutant(
        "aten_mx/backends/composite.py",
        "from aten_mx.emulated import dequantize_mx, quantize_mx",
        "from aten_mx.functional import dequantize_mx, quantize_mx",
        "test_overloads.py::test_the_address_of_0_1_is_the_emulated_kernel",
    ),
    # Compiled equals eager.
    "16-bit inputs are read as numbers": SourceMutant(
        "aten_mx/emulated.py",
        "absolute = (bits & torch.iinfo(bits.dtype).max).view(values.dtype).to(torch.float32)",
        "absolute = values.abs().to(torch.float32)",
        "test_compile_fused.py::test_fused_with_other_operations",
    ),
    "float16 results leave as float32 numbers": SourceMutant(
        "aten_mx/emulated.py",
        "    rounded = _round_to(bits, call.dtype).masked_fill_(\n"
        "        scale_bytes == E8M0_NAN, _NAN_BITS[call.dtype]\n"
        "    )\n",
        "    rounded = _round_to(\n"
        "        bits.masked_fill_(scale_bytes == E8M0_NAN, _QUIET_NAN), call.dtype\n"
        "    )\n",
        "test_compile_fused.py::test_fused_with_other_operations",
    ),
    "a trace takes no lazily negative input": SourceMutant(
        "aten_mx/emulated.py",
        "        values = values.clone()\n",
        "        pass\n",
        "test_export.py::test_strided_and_lazily_negative_inputs",
    ),
    # A format and a mode: each language has them all.
    "a format's row is another in C++": SourceMutant(
        "aten_mx/csrc/aten/src/ATen/native/quantized/QuantizeMX.h",
        "6, 3, 2, 0b0'111'11,   0,    0,            false},",
        "6, 3, 2, 0b0'111'10,   0,    0,            false},",
        "test_native_table.py",
    ),
    "a format isn't in the documents": SourceMutant(
        "aten_mx/formats.py",
        '        ElementFormat("fp6_e3m2", None, 6, 3, 2, 0b0_111_11),\n',
        '        ElementFormat("fp6_e3m2", None, 6, 3, 2, 0b0_111_11),\n'
        '        ElementFormat("fp5_e2m2", None, 5, 2, 2, 0b0_11_11),\n',
        "test_docs.py::test_the_table_of_formats_is_the_packages",
    ),
    "Triton's kernels lack a mode": SourceMutant(
        "aten_mx/backends/triton/elements.py",
        "SCALE_MODES = range(4)",
        "SCALE_MODES = range(3)",
        "test_triton.py::test_the_kernels_have_every_scale_mode",
    ),
    "a mode has another number in C++": SourceMutant(
        "aten_mx/csrc/aten/src/ATen/native/quantized/QuantizeMX.h",
        '        "even",\n        2,\n',
        '        "even",\n        4,\n',
        "test_native_table.py",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests import, and their settings."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("aten_mx", "native_functions_patch", "examples", "tests", "docs", "rfc"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def passes(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "ATEN_MX_CPU": "off"}
    return subprocess.run(
        command, cwd=copy / "tests", env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, copy: Path) -> None:
    mutant = MUTANTS[name]
    source = (copy / mutant.file).read_text()
    assert source.count(mutant.old) == 1, f"{mutant.old!r} stands {source.count(mutant.old)} times"
    (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
    try:
        result = passes(copy, mutant.test)
    finally:
        (copy / mutant.file).write_text(source)
    # 1: tests failed; 2: they could not be collected, as the import raised; 4: conftest's import.
    assert result.returncode in (1, 2, 4), result.stdout[-2000:] + result.stderr[-2000:]


def test_unbroken_they_pass(copy: Path) -> None:
    result = passes(copy, *{mutant.test for mutant in MUTANTS.values()})
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
