"""Surroundings that users reported: deterministic mode, autocast, regions, tracing, extreme shapes.

Those of the native kernel are in ``test_native_faults.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import DTYPES, PAYLOAD_DTYPES
from sample_calls import DEQUANTIZE, MODES, QUANTIZE, REAL_DTYPES, assert_same, bytes_of
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.functional import ScalingType
from torch.nn.functional import SwizzleType as TorchSwizzleType

import aten_mx
from aten_mx import ScaleCalculationMode, SwizzleType
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.reference import scaled_mm

TORCH_SWIZZLES = [TorchSwizzleType.NO_SWIZZLE, TorchSwizzleType.SWIZZLE_32_4_4]
TOO_BIG = "{op}: the {name} for self of shape {shape} would have more than 2^63 - 1 bytes"


# --- deterministic mode ---------------------------------------------------------------------------


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """PyTorch then fills every new tensor, which it cannot for ``float4_e2m1fn_x2``."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def results_of(x: Tensor, dim: int, fmt: ElementFormat) -> list[Tensor]:
    """What both ops give for a format, by each overload and the front doors."""
    swizzle = 1 if dim == -1 else 0
    output, scale = QUANTIZE.format(x, dim, 32, fmt.name, 3, swizzle_type=swizzle)
    results = [output, scale]
    for dtype in REAL_DTYPES:
        results.append(
            DEQUANTIZE.format(output, scale, dim, 32, fmt.name, dtype, swizzle_type=swizzle)
        )
    if fmt.dtype is not None:
        typed, scale = aten_mx.quantize_mx(x, dim, 32, fmt.dtype, 3, swizzle_type=swizzle)
        results += [typed, scale]
        results.append(aten_mx.dequantize_mx(typed, scale, dim, swizzle_type=swizzle))
        results += QUANTIZE.default(x, dim, 32, fmt.dtype, 3)
    return results


def test_deterministic_mode() -> None:
    x = torch.randn(3, 64, 64)
    for fmt, dim in itertools.product(FORMATS.values(), (-1, 1)):
        expected = results_of(x, dim, fmt)
        with deterministic():
            assert_same(results_of(x, dim, fmt), expected)
            on_meta = results_of(x.to("meta"), dim, fmt)
            with FakeTensorMode() as mode:
                fakes = results_of(mode.from_tensor(x), dim, fmt)
        for got, want in zip(itertools.chain(on_meta, fakes), expected * 2, strict=True):
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def test_deterministic_mode_compiled() -> None:
    """Before code generation: Inductor (2.13) itself makes an empty ``float4_e2m1fn_x2`` tensor."""

    def run(x: Tensor) -> list[Tensor]:
        output, scale = aten_mx.quantize_mx(x, 0, 32, torch.float4_e2m1fn_x2)
        return [output, scale, aten_mx.dequantize_mx(output, scale, 0)]

    x = torch.randn(64, 8)
    with deterministic():
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        assert_same(compiled(x), run(x))


# --- autocast -------------------------------------------------------------------------------------


def test_the_reference_multiplies_in_float32_under_autocast() -> None:
    x, weight = torch.randn(40, 64), torch.randn(24, 64)
    bias, recipe = torch.randn(24), ScalingType.BlockWise1x32
    for device, dtype, swizzle in itertools.product(
        ("cpu", "cuda"), (torch.bfloat16, torch.float16), (0, 1)
    ):
        a, scale_a = aten_mx.quantize_mx(x, swizzle_type=swizzle)
        b, scale_b = aten_mx.quantize_mx(weight, swizzle_type=swizzle)
        if not swizzle:
            scale_b = scale_b.t()
        arguments = (a, b.t(), scale_a, recipe, scale_b, recipe, swizzle, swizzle, bias)
        expected = scaled_mm(*arguments, output_dtype=torch.float32)
        with autocast(device, dtype):
            got = scaled_mm(*arguments, output_dtype=torch.float32)
            assert torch.is_autocast_enabled(device)
        assert_same(got, expected)


def autocast(device: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Also of a device that this machine lacks: PyTorch would warn, and switch it off."""
    if device == "cpu" or torch.cuda.is_available():
        return torch.autocast(device, dtype)
    return switched_on(device, dtype)


@contextlib.contextmanager
def switched_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


def test_the_reference_on_meta() -> None:
    """A device without autocast."""
    a = torch.empty(4, 64, dtype=torch.float8_e4m3fn, device="meta")
    scale = torch.empty(4, 2, dtype=torch.float8_e8m0fnu, device="meta")
    recipe = ScalingType.BlockWise1x32
    assert scaled_mm(a, a.t(), scale, recipe, scale.t(), recipe).shape == (4, 4)


# --- regions and tracing --------------------------------------------------------------------------


def test_a_region_that_is_called_twice() -> None:
    """A dict whose keys are dtypes is what Dynamo could not resolve there."""

    def both(x: Tensor, dtype: Any, elem_format: str | None, swizzle: int) -> Tensor:
        output, scale = aten_mx.quantize_mx(x, -1, 32, dtype, "rceil", swizzle_type=swizzle)
        return aten_mx.dequantize_mx(output, scale, elem_format=elem_format, swizzle_type=swizzle)

    def methods(x: Tensor, dtype: Any, elem_format: str | None, swizzle: int) -> Tensor:
        output, scale = x.quantize_mx(-1, 32, dtype, "rceil", swizzle_type=swizzle)
        return output.dequantize_mx(scale, elem_format=elem_format, swizzle_type=swizzle)

    x = torch.randn(4, 64)
    aten_mx.install_torch_alias()
    try:
        for function, (dtype, elem_format, swizzle) in itertools.product(
            (both, methods),
            (
                (torch.float8_e4m3fn, None, 0),
                (torch.float8_e5m2, None, 1),
                (torch.float4_e2m1fn_x2, None, 1),
                ("fp6_e2m3", "fp6_e2m3", 0),
            ),
        ):
            torch._dynamo.reset()
            region = torch.compiler.nested_compile_region(
                lambda x, f=function, d=dtype, e=elem_format, s=swizzle: f(x, d, e, s)
            )

            def twice(x: Tensor, region: Callable[[Tensor], Tensor] = region) -> Tensor:
                return region(x) + region(x + 1)

            compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
            expected = [function(y, dtype, elem_format, swizzle) for y in (x, x + 1)]
            assert_same(compiled(x), expected[0] + expected[1])
    finally:
        aten_mx.remove_torch_alias()


def both_doors(element: Any, mode: Any, swizzle: Any) -> Callable[[Tensor], Any]:
    elem_format = element if isinstance(element, str) else None

    def run(x: Tensor) -> Any:
        output, scale = aten_mx.quantize_mx(x, -1, 32, element, mode, swizzle_type=swizzle)
        back = aten_mx.dequantize_mx(output, scale, elem_format=elem_format, swizzle_type=swizzle)
        return output, scale, back

    return run


def test_symbolic_trace_of_the_front_doors() -> None:
    """The payload's dtype is unknown to a trace, so a call of a front door is one node of it."""
    elements = [fmt.dtype for fmt in FORMATS.values() if fmt.dtype is not None] + list(FORMATS)
    modes = [*ScaleCalculationMode, *MODES, "floor", "ceil", "even", "rceil"]
    swizzles = [0, 1, *SwizzleType, *TORCH_SWIZZLES]
    x = torch.randn(4, 64)
    for i, element in enumerate(elements * 2):
        mode, swizzle = modes[i % len(modes)], swizzles[i % len(swizzles)]

        run = both_doors(element, mode, swizzle)
        traced = torch.fx.symbolic_trace(run)
        calls = [node.target for node in traced.graph.nodes if node.op == "call_function"]
        assert aten_mx.quantize_mx in calls
        assert aten_mx.dequantize_mx in calls
        assert_same(traced(x), run(x))


# --- extreme shapes -------------------------------------------------------------------------------


def expanded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """A tensor of any size in one element of memory."""
    one = torch.zeros((1,) * len(shape), dtype=dtype, device=device)
    return one.expand(shape)


@contextlib.contextmanager
def raises_too_big(op: str, name: str, shape: tuple[int, ...]) -> Iterator[None]:
    text = TOO_BIG.format(op=op, name=name, shape=list(shape))
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        yield


@pytest.mark.parametrize("device", ["cpu", "meta", "fake"])
def test_a_result_of_too_many_bytes(device: str) -> None:
    """Swizzle padding and a wider result make more bytes than the input has."""
    context = FakeTensorMode() if device == "fake" else contextlib.nullcontext()
    with context:
        check_too_big("cpu" if device == "fake" else device)


def check_too_big(device: str) -> None:
    for fmt in FORMATS:
        for shape in ((2**55, 1, 32), (2**54, 2, 32)):
            x = expanded(shape, torch.bfloat16, device)
            with raises_too_big("quantize_mx", "scale", shape):
                QUANTIZE.format(x, -1, 32, fmt, swizzle_type=1)
    for fmt, size, block_size, dtype in (
        ("int8", 2**62, 2, torch.float16),
        ("int8", 2**61, 2, torch.float32),
        ("fp8_e5m2", 2**62, 2, torch.bfloat16),
        ("fp6_e2m3", 2**61, 2, torch.float32),
        ("fp4_e2m1", 2**61, 2, torch.float16),
        ("fp4_e2m1", 2**62, 2, torch.float16),  # the number of values overflows
        ("fp4_e2m1", 2**63 - 1, 2, torch.float16),
    ):
        payload = expanded((size,), torch.uint8, device).view(PAYLOAD_DTYPES[fmt])
        blocks = min(size * (2 if fmt == "fp4_e2m1" else 1), 2**63 - 1) // block_size
        scale = expanded((blocks,), torch.uint8, device).view(torch.float8_e8m0fnu)
        with raises_too_big("dequantize_mx", "output", (size,)):
            DEQUANTIZE.format(payload, scale, -1, block_size, fmt, dtype)
    empty = expanded((2**57, 0, 32), torch.float32, device)
    for tensor in QUANTIZE.format(empty, -1, 32, "fp8_e4m3", swizzle_type=1):
        assert tensor.numel() == 0


def test_earlier_faults_win_over_the_size() -> None:
    x = expanded((2**55, 1, 33), torch.bfloat16, "meta")
    with pytest.raises(ValueError, match="multiple of block_size"):
        QUANTIZE.format(x, -1, 32, "int8", swizzle_type=1)
    payload = expanded((2**62,), torch.int8, "meta")
    scale = expanded((2**61,), torch.uint8, "meta").view(torch.float8_e8m0fnu)
    with pytest.raises(ValueError, match="scale must have shape"):
        DEQUANTIZE.format(payload, scale[1:], -1, 2, "int8", torch.float32)
    on_cpu = expanded((2**61,), torch.uint8, "cpu").view(torch.float8_e8m0fnu)
    with pytest.raises(RuntimeError, match="on one device"):
        DEQUANTIZE.format(payload, on_cpu, -1, 2, "int8", torch.float32)


def rows_of(tensor: Tensor, dim: int) -> Tensor:
    return bytes_of(tensor.movedim(dim, -1)).flatten(0, -2)


def test_any_rank() -> None:
    """PyTorch's reductions take up to 64 dimensions."""
    for rank, fmt in itertools.product((62, 63, 64, 65, 70), FORMATS):
        for dim, dtype in zip((0, rank // 2, rank - 1), DTYPES.values(), strict=True):
            shape = [1] * rank
            shape[rank // 3] = 3
            shape[dim] = 64
            x = torch.randn(shape).to(dtype)
            swizzle = int(dim == rank - 1)
            output, scale = QUANTIZE.format(x, dim, 32, fmt, 2)
            flat = QUANTIZE.format(x.movedim(dim, -1).flatten(0, -2), -1, 32, fmt, 2)
            for got, want in zip((output, scale), flat, strict=True):
                assert torch.equal(rows_of(got, dim), bytes_of(want))
            values = DEQUANTIZE.format(output, scale, dim, 32, fmt, dtype)
            again = DEQUANTIZE.format(*flat, -1, 32, fmt, dtype)
            assert torch.equal(rows_of(values, dim), bytes_of(again))
            if swizzle:
                payload, tiles = QUANTIZE.format(x, dim, 32, fmt, 2, swizzle_type=1)
                back = DEQUANTIZE.format(payload, tiles, dim, 32, fmt, dtype, swizzle_type=1)
                assert_same(back, values)
            on_meta = QUANTIZE.format(x.to("meta"), dim, 32, fmt, 2)
            assert [t.stride() for t in on_meta] == [output.stride(), scale.stride()]
