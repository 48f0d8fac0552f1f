"""The checks of a conformance run. Each yields its cases: a name, and a function that tests it.

Expected bytes come from two places: the golden vectors, and the emulated kernel called directly on
the CPU, whatever kernel is registered there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aten_mx import emulated
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.layout import SwizzleType
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.testing import compare, inputs
from aten_mx.testing.golden import Vector, read_vectors
from aten_mx.validation import REAL_DTYPES

QUANTIZE = torch.ops.aten_mx.quantize_mx
DEQUANTIZE = torch.ops.aten_mx.dequantize_mx
SWIZZLED = int(SwizzleType.SWIZZLE_32_4_4)


@dataclass(frozen=True)
class Target:
    """What a run checks.

    Args:
        device: where the ops run.
        ops: ``quantize_mx``, ``dequantize_mx`` or both.
        compile_backend: for ``torch.compile``.
    """

    device: torch.device
    ops: tuple[str, ...]
    compile_backend: str

    def put(self, x: Tensor) -> Tensor:
        """``x`` on the device, with its strides."""
        if x.device.type == self.device.type:
            return x
        if 0 in x.stride() and x.numel():  # copy_ refuses memory that overlaps
            once = x[tuple(slice(0, 1 if stride == 0 else None) for stride in x.stride())]
            return once.clone().to(self.device).expand(x.shape)
        # Bytes, as a device need not copy float8.
        stored = torch.empty_strided(x.shape, x.stride(), dtype=_BYTES.get(x.dtype, x.dtype))
        stored.copy_(x.view(stored.dtype))
        moved = torch.empty_strided(x.shape, x.stride(), dtype=stored.dtype, device=self.device)
        return moved.copy_(stored).view(x.dtype)


_BYTES = {
    fmt.dtype: torch.uint8 for fmt in FORMATS.values() if fmt.dtype and not fmt.twos_complement
} | {torch.float8_e8m0fnu: torch.uint8}

Cases = Iterator[tuple[str, Callable[[], str]]]
"""Names, and functions that return what is wrong: an empty string where the case holds."""


def overloads_of(fmt: ElementFormat, op: Any) -> dict[str, tuple[Any, Any]]:
    """Overload by name, with the argument that says the format."""
    table: dict[str, tuple[Any, Any]] = {"format": (op.format, fmt.name)}
    if fmt.dtype is not None:
        table["base"] = (op.default, fmt.dtype)
    return table


def as_typed(payload: Tensor, fmt: ElementFormat, overload: str) -> Tensor:
    """A payload in the dtype that the overload returns and takes."""
    dtype = fmt.dtype if overload == "base" else fmt.payload_dtype
    return payload if dtype is None or payload.dtype is dtype else payload.view(dtype)


def quantize_case(
    target: Target, x: Tensor, dim: int, block_size: int, fmt: ElementFormat, mode: int
) -> str:
    """Both overloads against the emulated kernel: bytes, strides, and an input left alone."""
    want = emulated.quantize_mx(x, dim, block_size, fmt.name, mode)
    on_device = target.put(x)
    before = compare.bits(on_device).clone()
    for overload, (op, element) in overloads_of(fmt, QUANTIZE).items():
        got = op(on_device, dim, block_size, element, mode)
        expected = (as_typed(want[0], fmt, overload), want[1])
        found = compare.same_kind(got, expected, target.device) or compare.quantize_mismatch(
            x, dim, got, expected
        )
        if found:
            return f"{overload} overload: {found}"
    return "" if torch.equal(compare.bits(on_device), before) else "the input was changed"


def dequantize_case(
    target: Target,
    payload: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    fmt: ElementFormat,
    dtype: torch.dtype,
) -> str:
    """Both overloads against the emulated kernel."""
    want = emulated.dequantize_mx(payload, scale, dim, block_size, fmt.name, dtype)
    for overload, (op, element) in overloads_of(fmt, DEQUANTIZE).items():
        named = (element,) if overload == "format" else ()
        typed = target.put(as_typed(payload, fmt, overload))
        got = op(typed, target.put(scale), dim, block_size, *named, dtype)
        found = compare.same_kind([got], [want], target.device) or compare.dequantize_mismatch(
            payload, scale, dim, got, want
        )
        if found:
            return f"{overload} overload: {found}"
    return ""


def golden(target: Target) -> Cases:
    """Each golden vector, along the last and the first dimension."""
    for vector in read_vectors():
        if vector.op in target.ops:
            for mode, dim in itertools.product(vector.modes or ("",), (-1, 0)):
                dtype = str(vector.dtype).removeprefix("torch.")
                kind = " ".join(filter(None, (vector.op, vector.elem_format, mode, dtype)))
                name = f"golden: {kind} dim={dim} scale={vector.scale:02x}: {vector.name}"
                yield name, partial(_golden_case, target, vector, mode, dim)


def _golden_case(target: Target, vector: Vector, mode: str, dim: int) -> str:
    fmt = FORMATS[vector.elem_format]
    codes, size = vector.codes, inputs.BLOCK_SIZE
    payload = codes[0::2] | codes[1::2] << 4 if fmt.codes_per_byte == 2 else codes
    payload = as_typed(payload.unsqueeze(0), fmt, "format")
    scale = torch.tensor([[vector.scale]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = vector.values.unsqueeze(0)
    if dim == 0:
        payload, scale, values = payload.t(), scale.t(), values.t()
    if vector.op == "quantize_mx":
        number = int(ScaleCalculationMode.parse(mode))
        got = QUANTIZE.format(target.put(values), dim, size, fmt.name, number)
        return compare.quantize_mismatch(values, dim, got, (payload, scale))
    args = (target.put(payload), target.put(scale), dim, size, fmt.name, vector.dtype)
    return compare.dequantize_mismatch(payload, scale, dim, DEQUANTIZE.format(*args), values)


def maxima(target: Target) -> Cases:
    """Every 16-bit pattern, and every float32 exponent around each threshold, as block maximum."""
    if "quantize_mx" not in target.ops:
        return
    for dtype, fmt, mode in itertools.product(REAL_DTYPES, FORMATS.values(), ScaleCalculationMode):
        wide = dtype is torch.float32
        x = inputs.float32_maxima(fmt, mode) if wide else inputs.every_maximum(dtype)
        name = f"maxima: quantize_mx {fmt.name} {mode.name.lower()} {_short(dtype)}"
        yield name, partial(quantize_case, target, x, -1, inputs.BLOCK_SIZE, fmt, int(mode))


def codes(target: Target) -> Cases:
    """Every payload byte under every scale byte."""
    if "dequantize_mx" not in target.ops:
        return
    payload = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(256, 1)
    scale = payload.t()[:, :1].contiguous().view(torch.float8_e8m0fnu)
    for dtype, fmt in itertools.product(REAL_DTYPES, FORMATS.values()):
        typed = as_typed(payload, fmt, "format")
        args = (typed, scale, -1, 256 * fmt.codes_per_byte, fmt, dtype)
        name = f"codes: dequantize_mx {fmt.name} {_short(dtype)}"
        yield name, partial(dequantize_case, target, *args)


def layouts(target: Target) -> Cases:
    """Each layout, empty ones included, with each format, mode and dtype."""
    table = inputs.LAYOUTS | inputs.EMPTY
    seeds = itertools.count()
    for (where, layout), fmt, dtype in itertools.product(
        table.items(), FORMATS.values(), REAL_DTYPES
    ):
        x = inputs.values(layout, dtype, next(seeds))
        args = (layout.dim, layout.block_size, fmt)
        label = f"{fmt.name} {_short(dtype)}: {where}"
        if "quantize_mx" in target.ops:
            for mode in ScaleCalculationMode:
                name = f"layouts: quantize_mx {mode.name.lower()} {label}"
                yield name, partial(quantize_case, target, x, *args, int(mode))
        if "dequantize_mx" in target.ops:
            payload, scale = emulated.quantize_mx(x, layout.dim, layout.block_size, fmt.name, 0)
            for strides, (q, s) in {
                "dense": (payload, scale),
                "spread": (_spread(payload), _spread(scale)),
            }.items():
                name = f"layouts: dequantize_mx {label}, {strides} strides"
                yield name, partial(dequantize_case, target, q, s, *args, dtype)


def swizzled(target: Target) -> Cases:
    """Scales in 128x4 tiles."""
    rotation = itertools.cycle(itertools.product(ScaleCalculationMode, REAL_DTYPES))
    for (where, layout), fmt in itertools.product(inputs.SWIZZLED.items(), FORMATS.values()):
        mode, dtype = next(rotation)
        x = inputs.values(layout, dtype, 0)
        args = (layout.dim, layout.block_size, fmt.name)
        for op in target.ops:
            name = f"swizzled: {op} {fmt.name} {mode.name.lower()} {_short(dtype)}: {where}"
            yield name, partial(_swizzled_case, target, op, x, args, int(mode))


def _swizzled_case(
    target: Target, op: str, x: Tensor, args: tuple[int, int, str], mode: int
) -> str:
    dim, block_size, name = args
    payload, scale = emulated.quantize_mx(x, *args, mode, swizzle_type=SWIZZLED)
    if op == "quantize_mx":
        got = QUANTIZE.format(target.put(x), *args, mode, swizzle_type=SWIZZLED)
        want = [payload, scale]
    else:
        # Padding must not be read: make it NaN.
        rows, columns = x.shape[-2], x.shape[-1] // block_size
        used = torch.ones(*x.shape[:-2], rows, columns, dtype=torch.uint8)
        padding = torch.ops.aten_mx._swizzle(used) == 0
        scale = scale.view(torch.uint8).masked_fill(padding, 0xFF).view(scale.dtype)
        tensors = target.put(payload), target.put(scale)
        got = [DEQUANTIZE.format(*tensors, *args, x.dtype, swizzle_type=SWIZZLED)]
        want = [
            emulated.dequantize_mx(
                payload, scale, dim, block_size, name, x.dtype, swizzle_type=SWIZZLED
            )
        ]
    return compare.same_kind(got, want, target.device) or compare.byte_mismatch(got, want)


def _spread(tensor: Tensor) -> Tensor:
    """The same bytes at every second place of a larger tensor, dimensions in reverse order."""
    stored = tensor.view(_BYTES.get(tensor.dtype, tensor.dtype))
    order = tuple(reversed(range(stored.dim())))
    larger = stored.permute(order).repeat_interleave(2, -1).contiguous()
    return larger[..., ::2].permute(order).view(tensor.dtype)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
