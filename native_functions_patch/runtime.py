"""The op as core would have it, on a stock wheel: ``aten::quantize_mx`` out of the built library.

Run as a process of its own, because a library that defines operators cannot be unloaded::

    python -m native_functions_patch.runtime LIBRARY TREE LAST_REVIEW
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aten_mx  # noqa: F401  (registers the ops to compare with)
from native_functions_patch import runtime_framework as framework
from native_functions_patch import runtime_python as python
from native_functions_patch.report import Report
from native_functions_patch.samples import E4M3, FP4, REAL, calls, flat, same


def check_bytes() -> str:
    """The same bytes, strides and dtypes as the package's ops, both ways."""
    ours, package = torch.ops.aten, torch.ops.aten_mx
    count = 0
    for name, args, kwargs in calls():
        actual = ours.quantize_mx(*args, **kwargs)
        assert same(actual, package.quantize_mx(*args, **kwargs)), f"quantize_mx {name}"
        for dtype in REAL:
            back_args = _back(actual, args, dtype)
            back = ours.dequantize_mx(*back_args, **kwargs)
            expected = package.dequantize_mx(*back_args, **kwargs)
            assert same(back, expected), f"dequantize_mx {name} to {dtype}"
            count += 1
        count += 1
    return f"{count} calls"


def check_composite() -> str:
    """The composite, called without the dispatcher, gives the CPU kernel's bytes."""
    count = 0
    for name, args, kwargs in calls():
        actual = _overload("quantize_mx", args[3]).decompose(*args, **kwargs)
        assert same(actual, torch.ops.aten.quantize_mx(*args, **kwargs)), f"quantize_mx {name}"
        for dtype in REAL:
            back = _back(actual, args, dtype)
            decomposed = _overload("dequantize_mx", args[3]).decompose(*back, **kwargs)
            expected = torch.ops.aten.dequantize_mx(*back, **kwargs)
            assert same(decomposed, expected), f"dequantize_mx {name} to {dtype}"
        count += 1 + len(REAL)
    return f"{count} calls"


def check_meta() -> str:
    """Meta kernels describe the results to the stride."""
    count = 0
    for name, args, kwargs in calls():
        result = torch.ops.aten.quantize_mx(*args, **kwargs)
        described = torch.ops.aten.quantize_mx(args[0].to("meta"), *args[1:], **kwargs)
        assert _descriptions(described) == _descriptions(result), f"quantize_mx {name}"
        back = _back(result, args, torch.bfloat16)
        on_meta = (arg.to("meta") if isinstance(arg, Tensor) else arg for arg in back)
        described = torch.ops.aten.dequantize_mx(*on_meta, **kwargs)
        expected = torch.ops.aten.dequantize_mx(*back, **kwargs)
        assert _descriptions(described) == _descriptions(expected), f"dequantize_mx {name}"
        count += 2
    return f"{count} calls"


def _descriptions(result: Any) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.stride(), t.dtype) for t in flat(result)]


def _overload(name: str, element: Any) -> Any:
    packet = getattr(torch.ops.aten, name)
    return packet.format if isinstance(element, str) else packet.default


def _back(result: Any, args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Arguments of ``dequantize_mx`` for the result of ``quantize_mx`` with ``args``."""
    element = (args[3],) if isinstance(args[3], str) else ()
    return (*result, *args[1:3], *element, dtype)


def check_errors() -> str:
    """A bad call is refused with the package's type and text."""
    x = torch.ones(4, 64)
    bad: tuple[tuple[Any, ...], ...] = (
        (x.double(), -1, 32, E4M3, 0),
        (x, 2, 32, E4M3, 0),
        (torch.tensor(1.0), 0, 32, E4M3, 0),
        (x, -1, 32, torch.int16, 0),
        (x, -1, 32, "fp5", 0),
        (x, -1, 32, E4M3, 7),
        (x, -1, 0, E4M3, 0),
        (x, -1, 48, E4M3, 0),
        (x, -1, 1, FP4, 0),
    )
    for args in bad:
        errors = []
        for ops in (torch.ops.aten, torch.ops.aten_mx):
            try:
                ops.quantize_mx(*args)
            except (TypeError, ValueError, IndexError, RuntimeError) as error:
                errors.append((type(error), str(error)))
        assert len(errors) == 2, f"not refused: {args[1:]}"
        assert errors[0] == errors[1], f"{errors[0]} is not {errors[1]}"
    return f"{len(bad)} calls"


def check_core_tests(tree: Path) -> str:
    """The patch's test file, in core's form."""
    import unittest

    path = tree / "test/quantization/core/test_quantize_mx.py"
    spec = importlib.util.spec_from_file_location("test_quantize_mx", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    assert result.wasSuccessful(), f"{len(result.failures) + len(result.errors)} tests failed"
    return f"{result.testsRun} tests"


def main(library: str, tree: str, last: str) -> int:
    """Load the library, run all checks, and return the exit code."""
    torch.ops.load_library(library)
    python.bind()
    report = Report()
    report.step("bytes", check_bytes)
    report.step("composite", check_composite)
    report.step("meta", check_meta)
    report.step("errors", check_errors)
    report.step("opcheck", framework.check_opcheck)
    report.step("functional", framework.check_functional)
    report.step("vmap", framework.check_vmap)
    report.step("export", framework.check_export)
    report.step("compiled composite", framework.check_compiled_composite)
    report.step("core's tests", lambda: check_core_tests(Path(tree)))
    report.step("OpInfo", python.check_opinfo)
    report.step("overrides", python.check_overrides)
    report.step("documentation", lambda: python.check_docs(Path(tree)))
    report.step("DTensor", python.check_dtensor)
    report.step("Inductor", lambda: python.check_inductor(has_kernel=int(last) >= 2))
    report.step("AOTInductor", lambda: python.check_aot_inductor(Path(tree)))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
