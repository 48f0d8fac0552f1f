"""What must hold on ``examples/cpp_backend``'s device; ``test_cpp_backend.py`` runs this file.

It is named so that pytest doesn't collect it with the others: a device, once loaded, is its
process's accelerator for good, and so must have a process to itself.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import SCALAR_TYPES
from cpp_device import Calls, check_same, to_device
from sample_calls import (
    DEQUANTIZE,
    MODES,
    QUANTIZE,
    REAL_DTYPES,
    assert_same,
    bytes_of,
    dequantize_samples,
    quantize_samples,
)
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.functional import ScalingType, SwizzleType

import aten_mx
from aten_mx import reference

E4M3 = torch.float8_e4m3fn


@pytest.fixture
def calls() -> Calls:
    return Calls()


def bits_of_every_size(count: int) -> Tensor:
    """Rows of float32 bits: patterns drawn at random, then blocks of one size each, 2^-149 up."""
    generator = torch.Generator().manual_seed(5)
    patterns = torch.randint(-(2**31), 2**31, (count, 64), generator=generator).to(torch.int32)
    values = torch.randn(count, 64, generator=generator, dtype=torch.float64)
    sizes = 2.0 ** torch.randint(-150, 128, (count, 1), generator=generator).double()
    return torch.cat([patterns, (values * sizes).float().view(torch.int32)])


# --- bytes ----------------------------------------------------------------------------------------


def test_samples(calls: Calls) -> None:
    """Both overloads of both ops; a format with a dtype, unswizzled, is the device's to answer."""
    for sample in [*quantize_samples(), *dequantize_samples()]:
        expected = sample.call()
        calls.new()
        check_same(sample.map(to_device).call(), expected)
        emulated = "fp6" in str(sample.args) or bool(sample.kwargs.get("swizzle_type"))
        quantizes = sample.overload in (QUANTIZE.default, QUANTIZE.format)
        assert calls.new() == (0 if emulated else quantizes, 0 if emulated else not quantizes)


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", SCALAR_TYPES)
def test_quantize_all_sizes(fmt: str, mode: int, dtype: torch.dtype) -> None:
    """NaN, Inf, subnormals, both ends of the scale."""
    x = bits_of_every_size(128).view(torch.float32).to(dtype)
    args = (32, SCALAR_TYPES[fmt], mode)
    check_same(QUANTIZE(x.to("mxdev"), 1, *args), QUANTIZE(x, 1, *args))
    check_same(QUANTIZE(x.t().to("mxdev"), 0, *args), QUANTIZE(x.t(), 0, *args))


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
@pytest.mark.parametrize("fmt", SCALAR_TYPES)
def test_dequantize_every_code(fmt: str, dtype: torch.dtype) -> None:
    """Every byte of a payload under every scale byte."""
    every = torch.arange(256, dtype=torch.uint8)
    payload = every.expand(256, 256).contiguous().view(SCALAR_TYPES[fmt])
    scale = every[:, None].view(torch.float8_e8m0fnu)
    args = (1, 512 if fmt == "fp4_e2m1" else 256, dtype)
    expected = DEQUANTIZE(payload, scale, *args)
    check_same(DEQUANTIZE(payload.to("mxdev"), scale.to("mxdev"), *args), expected)


def test_lazy_negative() -> None:
    """Negation kept as a flag of the tensor is resolved before the kernel reads memory."""
    x = torch.arange(1.0, 33.0).expand(2, 32).contiguous()
    assert torch._neg_view(x.to("mxdev")).is_neg()
    check_same(QUANTIZE(torch._neg_view(x.to("mxdev")), 1, 32, E4M3), QUANTIZE(-x, 1, 32, E4M3))


# --- errors and autograd --------------------------------------------------------------------------

WRONG: list[tuple[type[Exception], str, Callable[[Tensor, Tensor, Tensor], Any]]] = [
    (TypeError, "got torch.float64", lambda x, q, s: QUANTIZE(x.double(), -1, 32, E4M3)),
    (IndexError, "got 2", lambda x, q, s: QUANTIZE(x, 2, 32, E4M3)),
    (ValueError, "got fp5", lambda x, q, s: QUANTIZE.format(x, -1, 32, "fp5")),
    (TypeError, "got torch.int16", lambda x, q, s: QUANTIZE(x, -1, 32, torch.int16)),
    (ValueError, "got 4", lambda x, q, s: QUANTIZE(x, -1, 32, E4M3, 4)),
    (ValueError, "block_size 48", lambda x, q, s: QUANTIZE.format(x, -1, 48, "int8")),
    (TypeError, "torch.float64", lambda x, q, s: DEQUANTIZE(q, s, -1, 32, torch.float64)),
    (TypeError, "got torch.float32", lambda x, q, s: DEQUANTIZE(x, s, -1, 32, torch.float32)),
    (ValueError, "scale", lambda x, q, s: DEQUANTIZE(q, s.t(), -1, 32, torch.float32)),
    (RuntimeError, "mxdev:0", lambda x, q, s: DEQUANTIZE(q, s.cpu(), -1, 32, torch.float32)),
]
CONTEXTS = [contextlib.nullcontext, torch.no_grad, torch.inference_mode]


@pytest.mark.parametrize("context", CONTEXTS)
def test_wrong_calls_never_reach_the_kernel(
    context: Callable[[], contextlib.AbstractContextManager[Any]], calls: Calls
) -> None:
    with context():
        x = torch.ones(4, 64, device="mxdev")
        output, scale = QUANTIZE(x, -1, 32, E4M3)
        calls.new()
        for error, message, call in WRONG:
            with pytest.raises(error, match=message):
                call(x, output, scale)
        assert calls.new() == (0, 0)


def test_outputs_never_require_grad(calls: Calls) -> None:
    x = torch.ones(4, 64, device="mxdev", requires_grad=True)
    for output, scale in (QUANTIZE(x, -1, 32, E4M3), QUANTIZE.format(x, -1, 32, "fp8_e5m2")):
        back = DEQUANTIZE(output, scale, -1, 32, torch.float32)
        assert not any(t.requires_grad for t in (output, scale, back))
    assert calls.new() == (2, 2)
    # Beside them, gradients flow as ever.
    (2 * x + back).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(2).all()


def test_vmap(calls: Calls) -> None:
    """All examples in one call of the kernel."""
    x = torch.randn(3, 64, 5, generator=torch.Generator().manual_seed(0))

    def quantize(one: Tensor) -> tuple[Tensor, Tensor]:
        return QUANTIZE(one, 0, 32, E4M3)

    batched = torch.func.vmap(quantize)(x.to("mxdev"))
    assert calls.new() == (1, 0)
    for got, want in zip(batched, torch.func.vmap(quantize)(x), strict=True):
        assert torch.equal(bytes_of(got.cpu()), bytes_of(want))


def test_opcheck() -> None:
    """Not with inputs that require grad: PyTorch 2.13 checks those on its own devices only."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)).to("mxdev")
    torch.library.opcheck(QUANTIZE.default, (x, -1, 32, torch.int8, 1))
    torch.library.opcheck(QUANTIZE.format, (x, -1, 32, "fp8_e4m3"))


# --- compilers ------------------------------------------------------------------------------------


def round_trip(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One overload each: the first by dtype, the second by name."""
    output, scale = QUANTIZE(x, -1, 32, E4M3, 3)
    return output, scale, DEQUANTIZE.format(output, scale, -1, 32, "fp8_e4m3", torch.bfloat16)


class RoundTrip(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As the function."""
        return round_trip(x)


NODES = ["aten_mx.quantize_mx.default", "aten_mx.dequantize_mx.format"]
BASE_NODES = ["aten_mx.quantize_mx.default", "aten_mx.dequantize_mx.default"]


def ops_of(graph: torch.fx.Graph) -> list[str]:
    """The ops of a graph, without those that take tuples apart."""
    targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [target for target in targets if "getitem" not in target]


def device_input() -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """An input on the device and the CPU's results for it."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    return x.to("mxdev"), round_trip(x)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled_by_aot_eager(requires_grad: bool, calls: Calls) -> None:
    x, expected = device_input()
    compiled = torch.compile(round_trip, backend="aot_eager", fullgraph=True)
    check_same(compiled(x.requires_grad_(requires_grad)), expected)
    assert calls.new() == (1, 1)


def test_one_node_in_a_compilers_graph() -> None:
    """As a compiler of the vendor's own would get it from AOTAutograd."""
    graphs: list[list[str]] = []

    def compiler(graph_module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(ops_of(graph_module.graph))
        return make_boxed_func(graph_module.forward)

    x, expected = device_input()
    compiled = torch.compile(round_trip, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    check_same(compiled(x), expected)
    assert graphs == [BASE_NODES]


def test_export(calls: Calls, tmp_path: Path) -> None:
    """Traced on the device: one node per call, before and after decomposition and a file."""
    x, expected = device_input()
    program = torch.export.export(RoundTrip(), (x,))
    assert ops_of(program.graph) == NODES
    assert ops_of(program.run_decompositions().graph) == BASE_NODES
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    assert ops_of(loaded.graph) == NODES
    calls.new()
    check_same(loaded.module()(x), expected)
    assert calls.new() == (1, 1)


# --- the multiplication of what the kernels give --------------------------------------------------


@pytest.mark.parametrize("dtype", [E4M3, torch.float4_e2m1fn_x2], ids=["fp8", "fp4"])
@pytest.mark.parametrize("shape", [(5, 64, 3), (130, 160, 48), (1, 544, 257)], ids=str)
def test_scaled_mm(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Both ops against the reference, on numbers whose products are exact; several tiles."""
    import mxdev

    mxdev.load_scaled_mm()
    m, k, n = shape
    generator = torch.Generator().manual_seed(6)
    x, weight = (torch.randint(-4, 5, (rows, k), generator=generator).float() for rows in (m, n))
    bias = torch.arange(n).to(torch.bfloat16)
    sides = [
        aten_mx.quantize_mx(t, dtype=dtype, scale_calculation_mode="rceil", swizzle_type=1)
        for t in (x, weight)
    ]
    (a, scale_a), (b, scale_b) = sides
    tiles, block = SwizzleType.SWIZZLE_32_4_4, ScalingType.BlockWise1x32
    recipes = (scale_a, block, scale_b, block, tiles, tiles)
    expected = reference.scaled_mm(a, b.t(), *recipes, bias=bias)
    if dtype is E4M3:
        assert torch.equal(expected, (x @ weight.t() + bias).to(torch.bfloat16))
    a, b, scale_a, scale_b, bias = (t.to("mxdev") for t in (a, b, scale_a, scale_b, bias))
    recipes = (scale_a, block, scale_b, block, tiles, tiles)
    check_same(F.scaled_mm(a, b.t(), *recipes, bias=bias), expected)
    v1 = torch._scaled_mm(a, b.t(), scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16)
    check_same(v1, expected)


def test_scaled_mm_errors() -> None:
    """What the device's multiplication can't do it says; the CPU isn't asked instead."""
    import mxdev

    mxdev.load_scaled_mm()
    a, scale = aten_mx.quantize_mx(torch.ones(128, 128, device="mxdev"), swizzle_type=1)
    tiles, block = SwizzleType.SWIZZLE_32_4_4, ScalingType.BlockWise1x32
    with pytest.raises(ValueError, match="this device knows BlockWise1x32 with swizzled scales"):
        F.scaled_mm(a, a.t(), scale, block, scale, block)
    with pytest.raises(ValueError, match="a swizzled scale of 128 rows and 4 columns"):
        F.scaled_mm(a, a.t(), scale[1:], block, scale, block, tiles, tiles)
    with pytest.raises(ValueError, match="contraction dimension contiguous"):
        F.scaled_mm(a, a, scale, block, scale, block, tiles, tiles)
    half = aten_mx.quantize_mx(torch.ones(128, 64, device="mxdev"), swizzle_type=1)
    with pytest.raises(ValueError, match=r"got shapes \[128, 64\] and \[128, 128\]"):
        F.scaled_mm(half[0], a.t(), half[1], block, scale, block, tiles, tiles)


# --- the device itself ----------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    x, expected = device_input()
    torch.save(round_trip(x), tmp_path / "tensors.pt")
    check_same(torch.load(tmp_path / "tensors.pt"), expected)
    assert_same(torch.load(tmp_path / "tensors.pt", map_location="cpu"), expected)


def test_device_basics() -> None:
    """What models do with a device: deepcopy, resize, autocast, mixed arithmetic, printing."""
    x = torch.arange(6.0, device="mxdev").view(2, 3)
    assert str(x.device) == "mxdev:0"
    assert torch.equal(copy.deepcopy(x).cpu(), torch.arange(6.0).view(2, 3))
    assert x.t().add(1).cpu().tolist() == [[1, 4], [2, 5], [3, 6]]
    assert x.clone().resize_(4, 3).shape == (4, 3)
    x.untyped_storage().resize_(64)
    assert x.untyped_storage().nbytes() == 64
    with torch.autocast("mxdev", dtype=torch.bfloat16):
        assert (x @ x.t()).cpu().tolist() == [[5, 14], [14, 50]]
    assert "mxdev:0" in repr(x)
