"""PyTorch's own views of the operator: opcheck, vmap and export."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from native_functions_patch.codegen import NAMES
from native_functions_patch.samples import E4M3, FP4, as_bytes, same


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


def check_functional() -> str:
    """Inlined, the composites write to nothing: compilers inline them into functional graphs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {op: op.decompose for name in NAMES for op in _overloads(name)}
    count = 0
    for element in ("fp8_e4m3", "fp6_e2m3", "fp4_e2m1", "int8"):
        for swizzle in (0, 1):
            function = functools.partial(_format_round_trip, element, swizzle)
            trace = make_fx(function, decomposition_table=table, tracing_mode="fake")
            for node in trace(torch.randn(2, 64)).graph.nodes:
                if node.op == "call_function":
                    assert "quantize_mx" not in str(node.target), f"{node.target} isn't inlined"
                    assert not node.target._schema.is_mutable, f"{node.target} in {element}"
            count += 1
    return f"{count} graphs"


def _format_round_trip(element: str, swizzle: int, x: Tensor) -> Tensor:
    result = torch.ops.aten.quantize_mx.format(x, -1, 32, element, 3, swizzle_type=swizzle)
    rest = (-1, 32, element, torch.bfloat16)
    return torch.ops.aten.dequantize_mx.format(*result, *rest, swizzle_type=swizzle)


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name)
    return [packet.default, packet.format]


def check_vmap() -> str:
    """Mapped over a batch, the results are those of the examples, stacked."""
    batch = torch.randn(3, 64, 5)
    count = 0
    for element in (E4M3, "fp6_e3m2", FP4):
        for in_dim, dim in ((0, 0), (2, -1)):

            def quantize(x: Tensor, dim: int = dim, element: Any = element) -> Any:
                return torch.ops.aten.quantize_mx(x, dim, 1 if element is E4M3 else 2, element)

            examples = [example.contiguous() for example in batch.unbind(in_dim)]
            if any(example.shape[dim] % 2 for example in examples) and element is not E4M3:
                continue
            mapped = torch.func.vmap(quantize, in_dims=in_dim)(batch)
            for i, example in enumerate(examples):
                expected = quantize(example)
                for result, tensor in zip(mapped, expected, strict=True):
                    assert torch.equal(as_bytes(result)[i], as_bytes(tensor)), f"{element} {dim}"
            count += 1
    return f"{count} batches"


class _RoundTrip(torch.nn.Module):
    """Between two operations that Inductor fuses with it."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, scale = torch.ops.aten.quantize_mx(x * 1.1, -1, 32, E4M3)
        values = torch.ops.aten.dequantize_mx(output, scale, -1, 32, x.dtype)
        return output, scale, values, values * 1.1


def check_export() -> str:
    """An exported program holds the ops as nodes and gives the same bytes."""
    x = torch.randn(4, 64)
    program = torch.export.export(_RoundTrip(), (x,))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    for op in NAMES:
        assert f"aten.{op}.default" in targets, f"{op} is not a node of {targets}"
    assert same(program.module()(x), _RoundTrip()(x))
    decomposed = program.run_decompositions()
    for given in (x, torch._neg_view(x)):
        assert same(decomposed.module()(given), _RoundTrip()(given))
    return "quantize_mx and dequantize_mx are one node each"


def check_compiled_composite() -> str:
    """What a compiler inlines where a device has no kernel gives eager's bytes."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes:
        x = torch.randn(64, 256, dtype=dtype)
        program = torch.export.export(_RoundTrip(), (x,)).run_decompositions().module()
        with torch._inductor.config.patch(force_disable_caches=True):
            assert same(torch.compile(program)(x), program(x)), f"{dtype}"
    return f"{len(dtypes)} input dtypes"
