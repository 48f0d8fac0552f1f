"""``torch.export`` and AOTInductor: one node per call, dynamic sizes, saved and run elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_faults
from sample_calls import assert_same, dequantize_samples, description, quantize_samples
from support import cpu_kernel, run_python
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

import aten_mx

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The price of its force_disable_caches: PyTorch 2.13 warns that it is set.
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning"),
]

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx
QUANTIZE = "aten_mx.quantize_mx.default"
BY_NAME = "aten_mx.quantize_mx.format"
BACK = "aten_mx.dequantize_mx.format"
INLINED = {"aten_mx._bitcast.default"}
SHAPES = [(7, 128), (2, 64), (1, 320)]


class Quantize(torch.nn.Module):
    """Both overloads: FP8 by dtype, FP4 by name, and FP4 read back."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, scale = quantize_mx(x, -1, 32, torch.float8_e4m3fn, 3)
        packed, shared = quantize_mx.format(x, -1, 32, "fp4_e2m1", 2)
        back = dequantize_mx.format(packed, shared, -1, 32, "fp4_e2m1", torch.bfloat16)
        return output, scale, packed, shared, back


class BothDims(torch.nn.Module):
    """Blocks along rows and along columns of the same input."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            *quantize_mx.format(x, 0, 32, "fp6_e2m3", 1),
            *aten_mx.quantize_mx(x, dtype="int8", scale_calculation_mode="even"),
        )


class Swizzled(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, scale = quantize_mx.format(x, -1, 32, "fp8_e4m3", swizzle_type=1)
        return output, scale


class Typed(torch.nn.Module):
    """Payload as ``float4_e2m1fn_x2``."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, scale = quantize_mx(x, -1, 32, torch.float4_e2m1fn_x2)
        return output, scale


class FirstColumns(torch.nn.Module):
    """The blocked size is a number read from a tensor."""

    def forward(self, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        n = columns.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[1])
        output, scale = quantize_mx(x[:, :n], 1, 32, torch.float8_e4m3fn)
        return output, scale


def export(strict: bool = False) -> ExportedProgram:
    """A program with a dynamic batch and a dynamic blocked dimension."""
    sizes = {0: Dim("batch"), 1: 32 * Dim("blocks", min=2, max=64)}
    return torch.export.export(
        Quantize(), (torch.randn(4, 64),), dynamic_shapes=(sizes,), strict=strict
    )


def ops_of(program: ExportedProgram) -> list[str]:
    names = (str(node.target) for node in program.graph.nodes)
    return [name for name in names if name.startswith("aten_mx")]


def assert_equals_eager(module: torch.nn.Module) -> None:
    for shape in SHAPES:
        x = torch.randn(shape)
        assert_same(module(x), Quantize()(x))


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_each_call_is_one_node(strict: bool) -> None:
    program = export(strict)
    assert ops_of(program) == [QUANTIZE, BY_NAME, BACK]
    assert_equals_eager(program.module())


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_both_dimensions_blocked_and_dynamic(strict: bool) -> None:
    sizes = {0: 32 * Dim("rows", min=2, max=64), 1: 32 * Dim("columns", min=2, max=64)}
    program = torch.export.export(
        BothDims(), (torch.randn(64, 128),), dynamic_shapes=(sizes,), strict=strict
    )
    assert ops_of(program) == [BY_NAME, BY_NAME]
    for shape in ((64, 64), (128, 320), (1024, 96)):
        x = torch.randn(shape)
        assert_same(program.module()(x), BothDims()(x))


def test_a_swizzled_scale_of_dynamic_size() -> None:
    """Rows and columns on both sides of a tile's edge, from a trace at several tiles."""
    sizes = {0: Dim("rows", min=2, max=1024), 1: 32 * Dim("blocks", min=2, max=64)}
    program = torch.export.export(Swizzled(), (torch.randn(300, 320),), dynamic_shapes=(sizes,))
    for shape in ((300, 320), (5, 64), (128, 128), (129, 640)):
        x = torch.randn(shape)
        assert_same(program.module()(x), Swizzled()(x))


@pytest.mark.parametrize("table", [False, True], ids=["default", "own table"])
def test_decompositions_inline_the_calls(table: bool) -> None:
    program = export()
    program = (
        program.run_decompositions(aten_mx.decomposition_table())
        if table
        else program.run_decompositions()
    )
    assert set(ops_of(program)) == INLINED
    assert_equals_eager(program.module())


def test_a_device_kernel_stays_one_node() -> None:
    """Also after ``run_decompositions``, so that the program runs the kernel."""
    with cpu_kernel():
        program = torch.export.export(Typed(), (torch.randn(4, 64),))
        assert ops_of(program) == ops_of(program.run_decompositions()) == [QUANTIZE]
    assert set(ops_of(program.run_decompositions())) == INLINED


@pytest.mark.parametrize("inlined", [False, True], ids=["exported", "inlined"])
def test_strided_and_lazily_negative_inputs(inlined: bool) -> None:
    program = export()
    module = (program.run_decompositions() if inlined else program).module()
    strided = torch.randn(128, 7).t()
    negative = torch.randn(7, 128, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    for x in (strided, negative, torch._neg_view(strided)):
        assert_same(module(x), Quantize()(x))


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_a_blocked_size_known_only_at_run_time(strict: bool) -> None:
    """That the size is a multiple becomes an assertion of the program; 0 and 1 block are no
    cases of their own."""
    x = torch.randn(3, 256)
    program = torch.export.export(FirstColumns(), (x, torch.tensor(96)), strict=strict)
    assert ops_of(program) == [QUANTIZE]
    for module in (program.module(), program.run_decompositions().module()):
        for columns in (96, 256, 32, 0):
            n = torch.tensor(columns)
            assert_same(module(x, n), FirstColumns()(x, n))
        with pytest.raises(RuntimeError, match=r"Runtime assertion failed .*Mod\(u\d+, 32\), 0"):
            module(x, torch.tensor(40))


@pytest.mark.parametrize("samples", [quantize_samples, dequantize_samples])
def test_fake_and_meta_describe_what_eager_gives(samples: object) -> None:
    """FakeTensor runs the emulated kernel, meta the fake: both agree with eager to the stride."""
    for sample in samples():  # type: ignore[operator]
        want = description(sample.call())
        with FakeTensorMode() as mode:
            assert description(sample.map(mode.from_tensor).call()) == want, sample.name
        meta = sample.map(lambda tensor: tensor.to("meta"))
        assert description(meta.call()) == want, sample.name


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
results = [[(t.stride(), t.view(torch.uint8)) for t in model(x)] for x in inputs]
torch.save(results, folder + "/out.pt")
"""


@pytest.mark.parametrize("kind", ["export", pytest.param("aoti", marks=pytest.mark.slow)])
def test_saved_and_run_in_a_fresh_process(kind: str, tmp_path: Path) -> None:
    program = export()
    if kind == "export":
        torch.export.save(program, tmp_path / "program.pt2")
    else:
        package = str(tmp_path / "package.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package)
    inputs = [torch.randn(shape) for shape in SHAPES]
    torch.save(inputs, tmp_path / "inputs.pt")
    run_python(RUN_ELSEWHERE, str(tmp_path), kind, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    for got, x in zip(torch.load(tmp_path / "out.pt"), inputs, strict=True):
        for (stride, data), want in zip(got, Quantize()(x), strict=True):
            assert stride == want.stride()
            assert torch.equal(data, want.view(torch.uint8))


@torch_faults.FLOAT4_NOT_SERIALIZED
def test_a_typed_float4_payload_is_saved(tmp_path: Path) -> None:
    """Until it has, ``.format`` with its raw bytes is the way to disk."""
    program = torch.export.export(Typed(), (torch.randn(4, 64),))
    x = torch.randn(4, 64)
    assert_same(program.module()(x), Typed()(x))
    torch.export.save(program, tmp_path / "program.pt2")
