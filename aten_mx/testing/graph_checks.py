"""Checks of everything about a call but its bytes: errors, fakes, autograd, vmap, compile, FTZ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aten_mx import emulated
from aten_mx.formats import FORMATS
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.testing import compare, inputs
from aten_mx.testing.checks import DEQUANTIZE, QUANTIZE, Cases, Target, golden, maxima
from aten_mx.torch_compat import FakeTensorMode

E4M3 = torch.float8_e4m3fn
_NO_MODE = len(ScaleCalculationMode)


def _bad_calls(device: torch.device) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls by fault; the op, its arguments and keywords. The op's name comes before the colon."""
    x = torch.ones(4, 64, device=device)
    payload = torch.zeros(4, 64, dtype=torch.int8, device=device)
    scale = torch.zeros(4, 2, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu)
    raw = payload.view(torch.uint8)
    dq = (-1, 32, torch.float32)
    return {
        "quantize_mx: input dtype": (QUANTIZE.default, (x.int(), -1, 32, E4M3), {}),
        "quantize_mx: rank 0": (QUANTIZE.default, (x[0, 0], -1, 32, E4M3), {}),
        "quantize_mx: dim": (QUANTIZE.default, (x, 2, 32, E4M3), {}),
        "quantize_mx: element dtype": (QUANTIZE.default, (x, -1, 32, torch.float32), {}),
        "quantize_mx: unknown format": (QUANTIZE.format, (x, -1, 32, "fp7"), {}),
        "quantize_mx: scale mode": (QUANTIZE.default, (x, -1, 32, E4M3, _NO_MODE), {}),
        "quantize_mx: swizzle": (QUANTIZE.format, (x, -1, 32, "int8"), {"swizzle_type": 2}),
        "quantize_mx: block size 0": (QUANTIZE.default, (x, -1, 0, E4M3), {}),
        "quantize_mx: odd block size": (QUANTIZE.format, (x, -1, 1, "fp4_e2m1"), {}),
        "quantize_mx: no multiple": (QUANTIZE.default, (x, -1, 48, E4M3), {}),
        "quantize_mx: swizzled dim 0": (
            QUANTIZE.format,
            (x.t(), 0, 32, "int8"),
            {"swizzle_type": 1},
        ),
        "dequantize_mx: payload dtype": (DEQUANTIZE.default, (raw, scale, *dq), {}),
        "dequantize_mx: scale dtype": (
            DEQUANTIZE.default,
            (payload, scale.view(torch.uint8), *dq),
            {},
        ),
        "dequantize_mx: scale shape": (DEQUANTIZE.default, (payload, scale[:, :1], *dq), {}),
        "dequantize_mx: output dtype": (
            DEQUANTIZE.default,
            (payload, scale, -1, 32, torch.float64),
            {},
        ),
        "dequantize_mx: format": (
            DEQUANTIZE.format,
            (payload, scale, -1, 32, "fp8_e5m2", torch.float32),
            {},
        ),
    }


def errors(target: Target) -> Cases:
    """Bad calls raise on the device as they do on meta."""
    on_meta = _bad_calls(torch.device("meta"))
    for name, call in _bad_calls(target.device).items():
        if name.split(":")[0] in target.ops:
            yield f"errors: {name}", partial(_error_case, call, on_meta[name])


def _error_case(call: Any, on_meta: Any) -> str:
    got, want = _raised(call), _raised(on_meta)
    return "" if got == want else f"raised {got}, expected {want}"


def _raised(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> str:
    op, args, kwargs = call
    try:
        op(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _calls(target: Target) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """One call per format and op, with its tensors; layouts, modes and dtypes rotate."""
    calls: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}
    names = ("contiguous", "dim 0", "3 dimensions, middle", "transposed", "one row", "sizes of 1")
    for index, (fmt, name) in enumerate(
        zip(FORMATS.values(), itertools.cycle(names), strict=False)
    ):
        layout = inputs.LAYOUTS[name]
        dtype = (torch.float32, torch.bfloat16, torch.float16)[index % 3]
        x = inputs.values(layout, dtype, index)
        args: dict[str, Any] = {"dim": layout.dim, "block_size": layout.block_size}
        args["elem_format"] = fmt.name
        if "quantize_mx" in target.ops:
            mode = {"scale_calculation_mode": index % len(ScaleCalculationMode)}
            call = partial(QUANTIZE.format, **args, **mode)
            calls[f"quantize_mx {fmt.name} {name}"] = (call, (target.put(x),))
        if "dequantize_mx" in target.ops:
            payload, scale = emulated.quantize_mx(x, layout.dim, layout.block_size, fmt.name)
            call = partial(DEQUANTIZE.format, **args, dtype=dtype)
            tensors = (target.put(payload), target.put(scale))
            calls[f"dequantize_mx {fmt.name} {name}"] = (call, tensors)
    return calls


def _outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def fresh_outputs(target: Target) -> Cases:
    """A second call leaves the outputs of the first alone."""
    for name, (call, tensors) in _calls(target).items():
        yield f"fresh_outputs: {name}", partial(_fresh_case, call, tensors)


def _fresh_case(call: Callable[..., Any], tensors: tuple[Tensor, ...]) -> str:
    outputs = _outputs(call(*tensors))
    before = [compare.bits(output).clone() for output in outputs]
    call(*(torch.zeros_like(compare.bits(t)).to(t.device).view(t.dtype) for t in tensors))
    return compare.byte_mismatch([compare.bits(output) for output in outputs], before)


def fakes(target: Target) -> Cases:
    """FakeTensor gives the shapes, strides and dtypes of the real outputs."""
    for name, (call, tensors) in _calls(target).items():
        yield f"fakes: {name}", partial(_fake_case, target, call, tensors)


def _fake_case(target: Target, call: Callable[..., Any], tensors: tuple[Tensor, ...]) -> str:
    real = _outputs(call(*tensors))
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(tensor) for tensor in tensors]
    with mode:
        fake = _outputs(call(*fakes))
    return compare.same_kind(real, fake, target.device)


def autograd(target: Target) -> Cases:
    """Outputs never require grad."""
    for name, (call, tensors) in _calls(target).items():
        if name.startswith("quantize_mx"):
            yield f"autograd: {name}", partial(_autograd_case, call, tensors[0])


def _autograd_case(call: Callable[..., Any], x: Tensor) -> str:
    outputs = _outputs(call(x.detach().requires_grad_()))
    return "an output requires grad" if any(t.requires_grad for t in outputs) else ""


def vmap(target: Target) -> Cases:
    """A vmapped call is the calls stacked."""
    for name, (call, tensors) in _calls(target).items():
        if name.startswith("quantize_mx"):
            yield f"vmap: {name}", partial(_vmap_case, call, tensors[0])


def _vmap_case(call: Callable[..., Any], x: Tensor) -> str:
    batch = torch.stack([x, x.flip(0)])
    got = _outputs(torch.func.vmap(call)(batch))
    examples = [_outputs(call(example)) for example in batch.unbind()]
    want = [torch.stack([compare.bits(e[i]) for e in examples]) for i in range(len(got))]
    return compare.byte_mismatch([compare.bits(t) for t in got], want)


def compiled(target: Target) -> Cases:
    """Compiled calls give the bytes and strides of eager ones."""
    for name, (call, tensors) in _calls(target).items():
        yield f"compiled: {name}", partial(_compiled_case, target, call, tensors)


def _compiled_case(target: Target, call: Callable[..., Any], tensors: tuple[Tensor, ...]) -> str:
    torch.compiler.reset()  # each case is a first compile, not the ninth of one function

    def function(*args: Tensor) -> Any:
        return call(*args)

    function = torch.compile(function, fullgraph=True, backend=target.compile_backend)
    got, want = _outputs(function(*tensors)), _outputs(call(*tensors))
    return compare.same_kind(got, want, target.device) or compare.byte_mismatch(got, want)


def flush_to_zero(target: Target) -> Cases:
    """On a CPU that can flush subnormals, the golden vectors and bfloat16 maxima once more."""
    with flushed_subnormals() as can_flush:
        pass
    if target.device.type != "cpu" or not can_flush:
        return
    for name, case in (*golden(target), *maxima(target)):
        if name.startswith("golden") or name.endswith("bfloat16"):
            yield f"flush_to_zero: {name}", partial(_flushed_case, case)


def _flushed_case(case: Callable[[], str]) -> str:
    with flushed_subnormals():
        return case()


@contextmanager
def flushed_subnormals() -> Iterator[bool]:
    """Flush subnormals in this thread. Until the end it does all the work.

    Yields:
        Whether the CPU can.
    """
    # Each thread has its own setting, and a new thread inherits it for life. So the pool is filled
    # first (compiled code takes threads from it, whatever number is set), and then left idle.
    torch.ones(1 << 17).add_(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch.set_flush_denormal(True)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
