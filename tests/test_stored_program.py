"""A program that version 0.1 exported loads and runs: the schemas never change."""

from __future__ import annotations

import hashlib

import pytest
import torch
from stored_program import STORED, AllOverloads
from support import run_python
from torch import Tensor

# Of the results for example_input(), as version 0.1 gave them.
DIGEST = "b308558d91542c64555d3b518553e9d611fb3216cf480e7e483af78217de4b73"


def example_input() -> Tensor:
    """Every step of it is exact, so that it is the same everywhere."""
    return ((torch.arange(64 * 160) * 7919) % 4093 - 2046).float().view(64, 160) / 64


def digest(results: tuple[Tensor, ...]) -> str:
    """Of shapes, strides, dtypes and bytes."""
    text = [(list(t.shape), t.stride(), str(t.dtype)) for t in results]
    data = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in results)
    return hashlib.sha256(repr(text).encode() + data).hexdigest()


@pytest.fixture(scope="module", name="program")
def stored_program() -> torch.export.ExportedProgram:
    return torch.export.load(STORED)


def test_it_holds_every_overload(program: torch.export.ExportedProgram) -> None:
    names = [str(node.target) for node in program.graph.nodes]
    assert [name.removeprefix("aten_mx.") for name in names if name.startswith("aten_mx.")] == [
        *("quantize_mx.default", "quantize_mx.format", "quantize_mx.format"),
        *("dequantize_mx.default", "dequantize_mx.format", "dequantize_mx.format"),
    ]


def test_it_gives_the_bytes_it_gave(program: torch.export.ExportedProgram) -> None:
    x = example_input()
    assert digest(program.module()(x)) == DIGEST
    assert digest(AllOverloads()(x)) == DIGEST


def test_it_runs_where_only_the_package_is_imported() -> None:
    code = (
        "import sys, torch, aten_mx\n"
        "results = torch.export.load(sys.argv[1]).module()(torch.ones(32, 64))\n"
        "print(len(results), results[0].dtype, results[-1].sum().item())"
    )
    assert run_python(code, str(STORED)) == "9 torch.float8_e4m3fn 2048.0\n"
