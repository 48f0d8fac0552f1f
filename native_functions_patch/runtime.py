"""The op as core would have it, on a stock wheel: ``aten::quantize_mx`` out of the built library.

Run as a process of its own, because a library that defines operators cannot be unloaded::

    python -m native_functions_patch.runtime LIBRARY TREE
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aten_mx
from native_functions_patch.codegen import NAMES
from native_functions_patch.report import Report
from native_functions_patch.samples import E4M3, FP4, REAL, calls


def _flat(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _same(actual: Any, expected: Any) -> bool:
    pairs = list(zip(_flat(actual), _flat(expected), strict=True))
    return all(
        (a.dtype, a.shape, a.stride()) == (e.dtype, e.shape, e.stride())
        and torch.equal(_bytes(a), _bytes(e))
        for a, e in pairs
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def check_bytes() -> str:
    """The same bytes, strides and dtypes as the package's ops, both ways."""
    ours, package = torch.ops.aten, torch.ops.aten_mx
    count = 0
    for name, args, kwargs in calls():
        actual = ours.quantize_mx(*args, **kwargs)
        assert _same(actual, package.quantize_mx(*args, **kwargs)), f"quantize_mx {name}"
        element = args[3]
        for dtype in REAL:
            rest = (*args[1:3], *((element,) if isinstance(element, str) else ()), dtype)
            back = ours.dequantize_mx(*actual, *rest, **kwargs)
            expected = package.dequantize_mx(*actual, *rest, **kwargs)
            assert _same(back, expected), f"dequantize_mx {name} to {dtype}"
            count += 1
        count += 1
    return f"{count} calls"


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


def check_opcheck() -> str:
    """PyTorch's own checks of an operator: autograd registration, fake tensors, compilation."""
    from torch.library import opcheck

    x = torch.randn(4, 64, requires_grad=True)
    output, scale = torch.ops.aten.quantize_mx(x, -1, 32, torch.int8)
    assert not output.requires_grad
    assert not scale.requires_grad
    # test_schema is left out: PyTorch compares float8 tensors with allclose, which has no kernel.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, args in (
        (torch.ops.aten.quantize_mx.default, (x, -1, 32, torch.int8)),
        (torch.ops.aten.quantize_mx.format, (x, 0, 2, "fp6_e2m3", 3)),
        (torch.ops.aten.dequantize_mx.default, (output, scale, -1, 32, torch.float32)),
        (torch.ops.aten.dequantize_mx.format, (output, scale, 1, 32, "int8", torch.float16)),
    ):
        opcheck(op, args, test_utils=checks)
    return f"4 overloads, {len(checks)} checks each"


class _RoundTrip(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        output, scale = torch.ops.aten.quantize_mx(x, -1, 32, E4M3)
        return torch.ops.aten.dequantize_mx(output, scale, -1, 32, torch.float32)


def check_export() -> str:
    """An exported program holds the ops as nodes and gives the same bytes."""
    x = torch.randn(4, 64)
    program = torch.export.export(_RoundTrip(), (x,))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    for op in NAMES:
        assert f"aten.{op}.default" in targets, f"{op} is not a node of {targets}"
    assert _same(program.module()(x), _RoundTrip()(x))
    decomposed = program.run_decompositions()
    assert _same(decomposed.module()(x), _RoundTrip()(x))
    return "quantize_mx and dequantize_mx are one node each"


def stand_in(missing: set[str]) -> str:
    """The package's composites and fakes, where the library has no C++ ones."""
    library = torch.library.Library("aten", "IMPL")
    for op, composite in aten_mx.decomposition_table().items():
        name = op.name().removeprefix("aten_mx::")
        fake = getattr(aten_mx.schema, f"{name.replace('.', '_')}_fake")
        for key, kernel in (("Meta", fake), ("CompositeImplicitAutograd", composite)):
            if key in missing:
                library.impl(name, kernel, key)
    _LIBRARIES.append(library)
    return f"{', '.join(sorted(missing))} from the package"


_LIBRARIES: list[torch.library.Library] = []


def check_core_tests(tree: Path) -> str:
    """The patch's test file, in core's form, with ``torch.quantize_mx`` in its place."""
    import unittest

    path = tree / "test/quantization/test_quantize_mx.py"
    for owner in (torch, torch.Tensor):
        for name in NAMES:
            # A function, and not the packet itself, so that it binds as a method.
            setattr(
                owner,
                name,
                functools.partialmethod(getattr(torch.ops.aten, name))
                if owner is torch.Tensor
                else getattr(torch.ops.aten, name),
            )
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


def main(library: str, tree: str, *missing: str) -> int:
    """Load the library, run all checks, and return the exit code."""
    torch.ops.load_library(library)
    report = Report()
    if missing:
        report.step("stand-in", lambda: stand_in(set(missing)))
    report.step("bytes", check_bytes)
    report.step("errors", check_errors)
    report.step("opcheck", check_opcheck)
    report.step("export", check_export)
    report.step("core's tests", lambda: check_core_tests(Path(tree)))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
