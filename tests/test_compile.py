"""``torch.compile`` with the default backend: the bytes and strides of eager mode.

Inductor takes about a second for each call of an op, so the calls are grouped into few functions
and the arguments rotate: every format with every mode, every dtype with every dimension.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch_faults
from cases import SCALAR_TYPES
from sample_calls import MODES, REAL_DTYPES, assert_same, dequantize_samples, quantize_samples
from support import cpu_kernel
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import aot_module, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx

import aten_mx
from aten_mx.formats import FORMATS
from aten_mx.testing.graph_checks import flushed_subnormals

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The price of its force_disable_caches: PyTorch 2.13 warns that it is set.
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning"),
]

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx
FLT_MAX = torch.finfo(torch.float32).max


@contextlib.contextmanager
def flush_to_zero() -> Iterator[None]:
    with flushed_subnormals() as can_flush:
        assert can_flush, "the test needs a processor that can flush subnormals"
        yield


def round_trips(
    x: Tensor, fmt: str, modes: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[Tensor]:
    """Some modes and result dtypes of one format."""
    results = []
    for mode in modes:
        output, scale = quantize_mx.format(x, -1, 32, fmt, mode)
        results += [output, scale]
    return results + [dequantize_mx.format(output, scale, -1, 32, fmt, dtype) for dtype in dtypes]


def hard_blocks() -> Tensor:
    """NaN, Inf, zero, subnormal and the largest blocks among ordinary ones."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))
    x[0, 3] = float("nan")
    x[1, 40] = float("-inf")
    x[2] = 0.0
    x[2, ::2] = -0.0
    x[3] = 2.0**-130 * torch.arange(64)
    x[4, 5] = FLT_MAX
    x[5, :32] *= 2.0**-126
    x[6, :32] *= 1e-38
    return x


@pytest.mark.proves("emulated, compiled")
@pytest.mark.parametrize(
    ("fmt", "modes", "dtypes"),
    [
        # One format of each kind; with the next test they have every mode and result dtype.
        ("fp8_e4m3", [3], [torch.float32]),
        ("fp4_e2m1", [1], [torch.bfloat16]),
        ("int8", [2], [torch.float16]),
        *(pytest.param(fmt, MODES, REAL_DTYPES, marks=pytest.mark.slow) for fmt in FORMATS),
    ],
)
def test_modes_and_result_dtypes(
    fmt: str, modes: Sequence[int], dtypes: Sequence[torch.dtype]
) -> None:
    """Also under flush-to-zero: neither a constant the compiler folds nor a step is subnormal."""
    compiled = torch.compile(round_trips, fullgraph=True)
    call = (hard_blocks(), fmt, modes, dtypes)
    want = round_trips(*call)
    with flush_to_zero():
        flushed = compiled(*call)
    assert_same(flushed, want)
    assert_same(compiled(*call), want)


DEQUANTIZED = {"fp8_e5m2": torch.bfloat16, "fp4_e2m1": torch.bfloat16}


@pytest.mark.proves("emulated, compiled")
@pytest.mark.parametrize(
    "formats",
    [
        ["fp8_e5m2", "fp6_e3m2", "fp4_e2m1"],
        pytest.param(list(FORMATS), marks=pytest.mark.slow),
    ],
    ids=["three", "all"],
)
def test_formats_with_dynamic_sizes(formats: list[str]) -> None:
    """One graph of several formats, for other row counts and other numbers of blocks."""

    def run(x: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        for i, fmt in enumerate(formats):
            output, scale = quantize_mx.format(x, -1, 32, fmt, i % 4)
            results += [output, scale]
            if fmt in DEQUANTIZED:
                back = dequantize_mx.format(output, scale, -1, 32, fmt, DEQUANTIZED[fmt])
                results.append(back)
        return results

    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for x in (hard_blocks(), torch.randn(5, 160), torch.randn(33, 1024)):
        assert_same(compiled(x), run(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16]
    + [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float32, torch.float16)],
    ids=str,
)
def test_dims_and_input_dtypes(dtype: torch.dtype) -> None:
    """The ScalarType overloads along every dimension of a strided input.

    The elements rotate: typed FP4, the third, meets every dimension.
    """
    elements = list(SCALAR_TYPES.values())

    def run(x: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        for i, dim in enumerate((0, 1, -1)):
            turn = i + REAL_DTYPES.index(dtype)
            output, scale = quantize_mx(x, dim, 32, elements[turn % 4], turn % 4)
            results += [output, scale]
            if turn % 2 == 0:
                results.append(dequantize_mx(output, scale, dim, 32, dtype))
        return results

    x = torch.randn(64, 32, 96).to(dtype)[:, :, ::3].transpose(0, 1)
    assert_same(torch.compile(run, fullgraph=True)(x), run(x))


def test_swizzled_scales() -> None:
    def run(x: Tensor) -> list[Tensor]:
        output, scale = quantize_mx.format(x, -1, 32, "fp4_e2m1", swizzle_type=1)
        back = dequantize_mx.format(
            output, scale, -1, 32, "fp4_e2m1", torch.float32, swizzle_type=1
        )
        return [output, scale, back]

    x = torch.randn(2, 130, 160)
    assert_same(torch.compile(run, fullgraph=True)(x), run(x))


def test_every_layout_before_code_generation() -> None:
    """All that AOTAutograd makes of a call, for every layout, empty ones included.

    Layouts stand twice, by either overload; of each the one or the other is taken in turn.
    """
    in_turn = [s for i, s in enumerate(quantize_samples()) if i % 4 in (0, 3)]
    samples = in_turn + dequantize_samples()[::5]
    samples = [s for s in samples if s.name.split("-")[1] not in FORMATS]  # those vary the format
    calls = [(s.overload, s.args[len(s.tensors) :], s.kwargs) for s in samples]

    def run(inputs: list[tuple[Tensor, ...]]) -> list[Any]:
        pairs = zip(inputs, calls, strict=True)
        return [op(*tensors, *args, **kwargs) for tensors, (op, args, kwargs) in pairs]

    inputs = [sample.tensors for sample in samples]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for got, sample in zip(compiled(inputs), samples, strict=True):
        assert_same(got, sample.call())


@torch_faults.STRIDES_OF_EMPTY_VIEWS
def test_strides_of_empty_outputs() -> None:
    x = torch.randn(4, 0)
    assert_same(torch.compile(aten_mx.quantize_mx, fullgraph=True)(x), aten_mx.quantize_mx(x))


@torch_faults.NEGATIVE_BIT_IGNORED
def test_a_lazily_negative_input() -> None:
    x = torch._neg_view(torch.randn(4, 64))
    assert_same(torch.compile(aten_mx.quantize_mx, fullgraph=True)(x), aten_mx.quantize_mx(x))


def test_sizes_share_one_graph() -> None:
    """The second size makes sizes dynamic; 1 is a graph of its own, as everywhere in PyTorch."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(aten_mx.quantize_mx, backend=counter, fullgraph=True)
    frames = []
    for shape in ((3, 64), (4, 96), (17, 2048), (1, 64), (1, 96)):
        x = torch.randn(shape)
        assert_same(compiled(x), aten_mx.quantize_mx(x))
        frames.append(counter.frame_count)
    assert frames == [1, 2, 2, 3, 3]


def test_an_input_that_requires_grad() -> None:
    """Gradients flow beside the ops, not through them."""
    x = torch.randn(4, 64, requires_grad=True)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        output, scale = quantize_mx(x, -1, 32, torch.float8_e4m3fn)
        back = dequantize_mx(output, scale, -1, 32, torch.float32)
        return output, scale, back, (back * x).sum()

    *results, loss = torch.compile(step, fullgraph=True)(x)
    assert_same(results, step(x)[:3])
    assert [t.requires_grad for t in results] == [False] * 3
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, results[2])


@pytest.mark.parametrize("kernel", [False, True], ids=["emulated", "kernel"])
def test_quantizing_thrice_is_one_node(kernel: bool) -> None:
    """After partitioning a training graph, equal calls are one: no constant keeps them apart."""
    names: list[str] = []

    class Thrice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = x * 2
            for _ in range(3):
                output, scale = quantize_mx(x, -1, 32, torch.float8_e5m2)
                total = total + dequantize_mx(output, scale, -1, 32, torch.float32) * x
            return total

    def record(module: torch.fx.GraphModule, _: object) -> Any:
        names.extend(str(node.target) for node in module.graph.nodes)
        return make_boxed_func(module.forward)

    with cpu_kernel() if kernel else contextlib.nullcontext():
        compiled = aot_module(
            Thrice(),
            fw_compiler=record,
            bw_compiler=record,
            partition_fn=min_cut_rematerialization_partition,
        )
        compiled(torch.randn(4, 64, requires_grad=True)).sum().backward()
    assert names.count("aten_mx.quantize_mx.default") == (1 if kernel else 0)
    assert names.count("aten.amax.default") == (0 if kernel else 1)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_inlines_a_call_by_the_table(mode: str) -> None:
    """With a kernel the call stays one node, unless the table says to inline it."""

    def run(x: Tensor) -> Any:
        return quantize_mx(x, -1, 32, torch.float8_e4m3fn, 2)

    def ops_of(table: Any) -> set[str]:
        x = torch.randn(4, 64)
        traced = make_fx(run, decomposition_table=table, tracing_mode=mode)(x)
        assert_same(traced(x), run(x))
        names = {str(node.target) for node in traced.graph.nodes}
        return {name for name in names if name.startswith("aten_mx")}

    inlined = {"aten_mx._bitcast.default"}
    assert ops_of(None) == inlined
    assert ops_of(aten_mx.decomposition_table()) == inlined
    with cpu_kernel():
        assert ops_of(None) == {"aten_mx.quantize_mx.default"}
        assert ops_of(aten_mx.decomposition_table()) == inlined
