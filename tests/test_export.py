"""``torch.export`` and AOTInductor: one node a call, dynamic sizes, saved and run elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aten_mx

QUANTIZE = "aten_mx.quantize_mx.default"
BY_NAME = "aten_mx.quantize_mx.format"
BACK = "aten_mx.dequantize_mx.format"
SHAPES = [(7, 128), (2, 64), (1, 320)]


class Quantize(torch.nn.Module):
    """Both overloads: FP8 by dtype, FP4 by name, and FP4 read back."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, scale = torch.ops.aten_mx.quantize_mx(x, -1, 32, torch.float8_e4m3fn, 3)
        packed, shared = torch.ops.aten_mx.quantize_mx.format(x, -1, 32, "fp4_e2m1", 2)
        back = torch.ops.aten_mx.dequantize_mx.format(
            packed, shared, -1, 32, "fp4_e2m1", torch.bfloat16
        )
        return output, scale, packed, shared, back


def export(strict: bool = False) -> torch.export.ExportedProgram:
    """A program with a dynamic batch and a dynamic blocked dimension."""
    batch, blocks = torch.export.Dim("batch"), torch.export.Dim("blocks", min=2, max=64)
    return torch.export.export(
        Quantize(),
        (torch.randn(4, 64),),
        dynamic_shapes=({0: batch, 1: 32 * blocks},),
        strict=strict,
    )


def ops_of(program: torch.export.ExportedProgram) -> list[str]:
    names = (str(node.target) for node in program.graph.nodes)
    return [name for name in names if name.startswith("aten_mx")]


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert mine.stride() == theirs.stride()
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def assert_equals_eager(module: torch.nn.Module) -> None:
    for shape in SHAPES:
        x = torch.randn(shape)
        assert_same(module(x), Quantize()(x))


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_each_call_is_one_node(strict: bool) -> None:
    program = export(strict)
    assert ops_of(program) == [QUANTIZE, BY_NAME, BACK]
    assert_equals_eager(program.module())


@pytest.mark.parametrize("table", [False, True], ids=["default", "own table"])
def test_decompositions_inline_the_calls(table: bool) -> None:
    program = export()
    program = (
        program.run_decompositions(aten_mx.decomposition_table())
        if table
        else program.run_decompositions()
    )
    assert set(ops_of(program)) == {"aten_mx._bitcast.default"}
    assert_equals_eager(program.module())


def test_a_strided_input() -> None:
    module = export().module()
    x = torch.randn(128, 7).t()
    assert_same(module(x), Quantize()(x))


RUN_ELSEWHERE = """
import sys
import torch
import aten_mx
folder, kind = sys.argv[1:]
if kind == "export":
    model = torch.export.load(folder + "/program.pt2").module()
else:
    model = torch._inductor.aoti_load_package(folder + "/package.pt2")
inputs = torch.load(folder + "/inputs.pt")
results = [[t.contiguous().view(torch.uint8) for t in model(x)] for x in inputs]
torch.save(results, folder + "/out.pt")
"""


@pytest.mark.parametrize("kind", ["export", "aoti"])
def test_saved_and_run_in_a_fresh_process(kind: str, tmp_path: Path) -> None:
    program = export()
    if kind == "export":
        torch.export.save(program, tmp_path / "program.pt2")
    else:
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "package.pt2")
        )
    inputs = [torch.randn(shape) for shape in SHAPES]
    torch.save(inputs, tmp_path / "inputs.pt")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_ELSEWHERE, str(tmp_path), kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for got, x in zip(torch.load(tmp_path / "out.pt"), inputs, strict=True):
        want = [t.contiguous().view(torch.uint8) for t in Quantize()(x)]
        for mine, theirs in zip(got, want, strict=True):
            assert torch.equal(mine, theirs)
