"""``torch.compile`` with the default backend: the bytes and strides of eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import aot_module, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import aten_mx
from aten_mx.formats import FORMAT_OF_DTYPE, FORMATS

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx
FLT_MAX = torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_same(compiled: list[Tensor], eager: list[Tensor]) -> None:
    assert len(compiled) == len(eager)
    for got, want in zip(compiled, eager, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(as_bytes(got), as_bytes(want))


def round_trips(x: Tensor, fmt: str, dims: tuple[int, ...] = (-1,)) -> list[Tensor]:
    """All modes and three result dtypes of one format, in one function: one compilation."""
    results = []
    for dim in dims:
        for mode in range(4):
            output, scale = quantize_mx.format(x, dim, 32, fmt, mode)
            results += [output, scale]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            results.append(dequantize_mx.format(output, scale, dim, 32, fmt, dtype))
    return results


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


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_and_mode(fmt: str, dynamic: bool) -> None:
    compiled = torch.compile(round_trips, fullgraph=True, dynamic=dynamic)
    x = hard_blocks()
    assert_same(compiled(x, fmt), round_trips(x, fmt))
    if dynamic:
        y = torch.randn(5, 160)
        assert_same(compiled(y, fmt), round_trips(y, fmt))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dims_and_input_dtypes(dtype: torch.dtype) -> None:
    """The ScalarType overloads along every dimension, typed FP4 included, and a strided input."""

    def run(x: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        for dim in (0, 1, 2):
            for element in FORMAT_OF_DTYPE:
                output, scale = quantize_mx(x, dim, 32, element, 3)
                results += [output, scale, dequantize_mx(output, scale, dim, 32, dtype)]
        return results

    x = torch.randn(32, 64, 96).to(dtype)[:, :, ::3].transpose(0, 1)
    x = x.contiguous().transpose(0, 1)
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


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "fp4_e2m1", "int8"])
def test_flush_to_zero_changes_nothing(fmt: str) -> None:
    x = hard_blocks()
    want = round_trips(x, fmt)
    compiled = torch.compile(round_trips, fullgraph=True)
    if not torch.set_flush_denormal(True):
        pytest.fail("this processor cannot flush subnormals: the test needs one that can")
    try:
        got = compiled(x, fmt)
    finally:
        torch.set_flush_denormal(False)
    assert_same(got, want)


def test_dynamic_sizes_share_one_graph() -> None:
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(aten_mx.quantize_mx, backend=counter, fullgraph=True, dynamic=True)
    for rows, columns in ((3, 64), (4, 96), (17, 256), (2, 2048)):
        x = torch.randn(rows, columns)
        assert_same(list(compiled(x)), list(aten_mx.quantize_mx(x)))
    assert counter.frame_count == 1


def test_an_input_that_requires_grad() -> None:
    """Gradients flow beside the ops, not through them."""
    x = torch.randn(4, 64, requires_grad=True)

    @torch.compile(fullgraph=True)
    def step(x: Tensor) -> Tensor:
        output, scale = quantize_mx(x, -1, 32, torch.float8_e4m3fn)
        return dequantize_mx(output, scale, -1, 32, torch.float32) * x

    step(x).sum().backward()
    output, scale = quantize_mx(x, -1, 32, torch.float8_e4m3fn)
    assert x.grad is not None
    assert torch.equal(x.grad, dequantize_mx(output, scale, -1, 32, torch.float32))


@pytest.mark.parametrize("kernel", [False, True], ids=["composite", "kernel"])
def test_quantizing_thrice_is_one_node(kernel: bool) -> None:
    """After partitioning a training graph, equal calls are one: no constant keeps them apart."""
    library = torch.library.Library("aten_mx", "IMPL")
    if kernel:
        library.impl("quantize_mx", aten_mx.decomposition_table()[quantize_mx.default], "CPU")
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

    try:
        compiled = aot_module(
            Thrice(),
            fw_compiler=record,
            bw_compiler=record,
            partition_fn=min_cut_rematerialization_partition,
        )
        compiled(torch.randn(4, 64, requires_grad=True)).sum().backward()
    finally:
        library._destroy()
    assert names.count("aten_mx.quantize_mx.default") == (1 if kernel else 0)
    assert names.count("aten.amax.default") == (0 if kernel else 1)
