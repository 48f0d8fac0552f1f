"""Wrong calls for ``test_errors*.py``: a maker for each overload, and the ways to reach the op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import expecttest
import pytest
import torch
from sample_calls import DEQUANTIZE, QUANTIZE, Sample, bytes_of
from torch import Tensor
from torch._subclasses import FakeTensorMode
from under_test import DEVICE

import aten_mx
from aten_mx.dispatch import inlined
from aten_mx.overloads import OVERLOADS

E4M3 = torch.float8_e4m3fn
E8M0 = torch.float8_e8m0fnu
FP4 = torch.float4_e2m1fn_x2
Route = Callable[[Sample], object]


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of any dtype."""
    return torch.zeros(shape, dtype=torch.uint8, device=DEVICE).to(dtype)


def raw(*shape: int, dtype: torch.dtype = E8M0) -> Tensor:
    """A tensor of a dtype of one byte."""
    return torch.ones(shape, dtype=torch.uint8, device=DEVICE).view(dtype)


# --- one call of each overload, valid but for the arguments given ---------------------------------


def base(
    x: Tensor | None = None,
    dim: int = -1,
    block_size: int = 32,
    dtype: torch.dtype = E4M3,
    mode: int = 0,
) -> Sample:
    x = zeros(4, 64) if x is None else x
    return Sample("base", QUANTIZE.default, (x, dim, block_size, dtype, mode), {})


def fmt(
    x: Tensor | None = None,
    dim: int = -1,
    block_size: int = 32,
    elem_format: str = "fp8_e4m3",
    mode: int = 0,
    swizzle: int = 0,
) -> Sample:
    x = zeros(4, 64) if x is None else x
    args = (x, dim, block_size, elem_format, mode)
    return Sample("format", QUANTIZE.format, args, {"swizzle_type": swizzle})


def back(
    x: Tensor | None = None,
    scale: Tensor | None = None,
    dim: int = -1,
    block_size: int = 32,
    dtype: torch.dtype = torch.float32,
) -> Sample:
    x = raw(4, 64, dtype=E4M3) if x is None else x
    scale = raw(4, 2) if scale is None else scale
    return Sample("base", DEQUANTIZE.default, (x, scale, dim, block_size, dtype), {})


def back_fmt(
    x: Tensor | None = None,
    scale: Tensor | None = None,
    dim: int = -1,
    block_size: int = 32,
    elem_format: str = "fp8_e4m3",
    dtype: torch.dtype = torch.float32,
    swizzle: int = 0,
) -> Sample:
    x = raw(4, 64, dtype=E4M3) if x is None else x
    scale = raw(4, 2) if scale is None else scale
    args = (x, scale, dim, block_size, elem_format, dtype)
    return Sample("format", DEQUANTIZE.format, args, {"swizzle_type": swizzle})


# --- the ways to reach the op ---------------------------------------------------------------------


def within(context: Callable[[], contextlib.AbstractContextManager[Any]]) -> Route:
    def route(call: Sample) -> None:
        with context():
            call.call()

    return route


def on_inference_tensors(call: Sample) -> None:
    with torch.inference_mode():
        call = call.map(torch.clone)
    assert all(tensor.is_inference() for tensor in call.tensors)
    call.call()


def on_fake(call: Sample) -> None:
    with FakeTensorMode() as mode:
        call.map(mode.from_tensor).call()


def over_tensors(call: Sample) -> Callable[..., Any]:
    """The call as a function of its tensors."""
    rest = call.args[len(call.tensors) :]
    return lambda *tensors: call.overload(*tensors, *rest, **call.kwargs)


def in_vmap(call: Sample) -> None:
    """A batch of two; the text must be about one example."""
    torch.func.vmap(over_tensors(call))(*(t.expand(2, *t.shape) for t in call.tensors))


class AsModule(torch.nn.Module):
    """torch.export wants a module."""

    def __init__(self, call: Sample) -> None:
        super().__init__()
        self.function = over_tensors(call)

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


ROWS = {row.handle: row for row in OVERLOADS}


def front_door(call: Sample) -> None:
    kwargs: dict[str, Any] = dict(call.kwargs)
    if call.overload._schema.name == QUANTIZE.default._schema.name:
        aten_mx.quantize_mx(*call.args, **kwargs)
        return
    *args, dtype = call.args
    if call.overload is DEQUANTIZE.format:
        kwargs["elem_format"] = args.pop()
    aten_mx.dequantize_mx(*args, dtype, **kwargs)


# These take any tensor; the others cannot hold a sparse, nested or quantized one, or two devices.
EAGER: dict[str, Route] = {
    "eager": within(contextlib.nullcontext),
    "no_grad": within(torch.no_grad),
    "inference_mode": within(torch.inference_mode),
    "emulated": lambda call: inlined(ROWS[call.overload])(*call.args, **call.kwargs),
    "front_door": front_door,
}
SAME: dict[str, Route] = {
    **EAGER,
    "inference_tensors": on_inference_tensors,
    "meta": lambda call: call.map(lambda t: t.to("meta")).call(),
    "fake": on_fake,
    "vmap": in_vmap,
    "export": lambda call: torch.export.export(AsModule(call), call.tensors, strict=False),
}
# Dynamo wraps the error; its text is inside.
CONTAINED: dict[str, Route] = {
    "compile": lambda call: torch.compile(over_tensors(call), backend="eager", fullgraph=True)(
        *call.tensors
    ),
    "strict_export": lambda call: torch.export.export(AsModule(call), call.tensors, strict=True),
}


def error_of(route: Route, call: Sample) -> Exception:
    """What the call raises; it must leave its inputs as they were."""
    strided = [t for t in call.tensors if not t.is_nested and t.layout is torch.strided]
    strided = [t for t in strided if not (t.is_quantized or t.is_meta or t.element_size() > 4)]
    before = [bytes_of(tensor).clone() for tensor in strided]
    with pytest.raises(Exception) as info:  # noqa: PT011  (the callers compare type and text)
        route(call)
    for tensor, data in zip(strided, before, strict=True):
        assert torch.equal(bytes_of(tensor), data)
    return info.value


class ErrorTest(expecttest.TestCase):
    """``self.check(error, text, *calls)``: each call, by each route, raises just that."""

    maxDiff = None

    def check(
        self,
        error: type[Exception],
        expected: str,
        *calls: Sample,
        same: Mapping[str, Route] = SAME,
        contained: Mapping[str, Route] = CONTAINED,
        frames: int = 1,
    ) -> None:
        text = str(error_of(SAME["eager"], calls[0]))
        self.assertExpectedInline(text, expected, skip=frames)
        for call in calls:
            for name, route in same.items():
                raised = error_of(route, call)
                assert (type(raised), str(raised)) == (error, text), (name, call.name, raised)
        for name, route in contained.items():
            torch._dynamo.reset()
            raised = error_of(route, calls[0])
            assert text in str(raised), (name, raised)

    def check_eager(self, error: type[Exception], expected: str, *calls: Sample) -> None:
        """For tensors that the other routes do not take."""
        self.check(error, expected, *calls, same=EAGER, contained={}, frames=2)
