"""Named calls of every overload, for tests that ask how a call behaves and not for its bytes.

``quantize_samples()`` and ``dequantize_samples()`` give fresh lists, the same at each call, with
the values finite and every block in range, so that no result holds a NaN (which no comparison in
PyTorch's own checks takes for equal). They are a cover and not a product: each format with each
mode, each layout with each overload, each dtype with each format, swizzled scales, and the
formats, modes and dtypes rotate through the rest.

    for sample in quantize_samples():
        expected = sample.call()  # sample.overload(*sample.args, **sample.kwargs)
        actual = torch.compile(sample.overload)(*sample.args, **sample.kwargs)
        assert_same(actual, expected)  # bytes, strides, dtypes and devices

A test calls them when it runs: ``dequantize_samples()`` runs a kernel, and none may run while tests
are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle
from typing import Any, NamedTuple

import torch
from cases import PAYLOAD_DTYPES, SCALAR_TYPES
from torch import Tensor
from torch._ops import OpOverload

import aten_mx

QUANTIZE = torch.ops.aten_mx.quantize_mx
DEQUANTIZE = torch.ops.aten_mx.dequantize_mx
OVERLOADS: tuple[OpOverload, ...] = (
    QUANTIZE.default,
    QUANTIZE.format,
    DEQUANTIZE.default,
    DEQUANTIZE.format,
)
MODES = range(len(aten_mx.ScaleCalculationMode))
REAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SWIZZLED = {"swizzle_type": 1}


class Sample(NamedTuple):
    """One valid call; the tensors are the first one (quantize) or two (dequantize) arguments."""

    name: str
    overload: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def dim(self) -> int:
        """The blocked dimension, counted from the front."""
        tensors = len(self.tensors)
        return int(self.args[tensors]) % self.args[0].dim()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor arguments."""
        return tuple(arg for arg in self.args if isinstance(arg, Tensor))

    def call(self) -> Any:
        """The result in eager mode."""
        return self.overload(*self.args, **self.kwargs)

    def map(self, function: Callable[[Tensor], Tensor]) -> Sample:
        """The same call with ``function`` of each tensor argument."""
        args = tuple(function(arg) if isinstance(arg, Tensor) else arg for arg in self.args)
        return self._replace(args=args)


class Layout(NamedTuple):
    """A tensor to quantize: ``view`` of a contiguous one of shape ``base``, blocked at ``dim``."""

    base: tuple[int, ...]
    dim: int
    view: Callable[[Tensor], Tensor] = lambda x: x
    block_size: int = 32


LAYOUTS: dict[str, Layout] = {
    "contiguous": Layout((4, 64), -1),
    "dim0": Layout((64, 3), 0),
    "transposed": Layout((64, 4), 1, lambda x: x.t()),
    "transposed_dim0": Layout((3, 64), -2, lambda x: x.t()),
    "sliced": Layout((5, 128), -1, lambda x: x[1:, 32:96]),
    "every_third": Layout((4, 192), 1, lambda x: x[:, ::3]),
    "expanded_rows": Layout((1, 64), -1, lambda x: x.expand(4, 64)),
    "expanded_blocks": Layout((4, 1), -1, lambda x: x.expand(4, 64)),
    "1d": Layout((96,), 0),
    "3d_middle": Layout((2, 64, 3), 1),
    "4d_first": Layout((64, 2, 3, 2), -4),
    "4d_permuted": Layout((2, 3, 64, 2), 1, lambda x: x.permute(3, 2, 0, 1)),
    "batch_1": Layout((1, 64), -1),
    "batch_1_dim0": Layout((64, 1), 0),
    "one_block": Layout((4, 32), -1),
    "one_block_one_row": Layout((1, 32), -1),
    "one_block_dim0": Layout((32, 3), 0),
    "size_one_dims": Layout((1, 2, 1, 64), 3),
    "no_rows": Layout((0, 64), -1),
    "no_rows_dim0": Layout((64, 0), 0),
    "no_blocks": Layout((4, 0), -1),
    "no_blocks_dim0": Layout((0, 4), 0),
    "no_middle": Layout((2, 0, 64), 2),
    "block_2": Layout((3, 8), -1, block_size=2),
    "block_64": Layout((2, 128), -1, block_size=64),
}
SWIZZLE_LAYOUTS: dict[str, Layout] = {
    "swizzled": Layout((5, 64), -1),
    "swizzled_transposed": Layout((160, 130), 1, lambda x: x.t()),
    "swizzled_3d": Layout((2, 129, 32), 2),
    "swizzled_no_rows": Layout((0, 64), -1),
    "swizzled_no_blocks": Layout((4, 0), -1),
}


def make_input(layout: Layout, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values around 1 with a few zeros: in range in every format, dtype and mode."""
    values = torch.randn(layout.base, generator=torch.Generator().manual_seed(0))
    values[values.abs() < 0.02] = 0.0
    return layout.view(values.to(dtype))


def quantize_samples() -> list[Sample]:
    """Calls of both ``quantize_mx`` overloads."""
    return list(chain(_quantize_products(), _quantize_layouts()))


def _quantize_products() -> Iterator[Sample]:
    """Formats with modes and with dtypes, on one layout."""
    layout = LAYOUTS["contiguous"]
    dtypes = cycle(REAL_DTYPES)  # four modes and three dtypes: all twelve pairs occur
    for fmt in PAYLOAD_DTYPES:
        for mode in MODES:
            dtype = next(dtypes)
            name = f"{fmt}-mode{mode}-{_short(dtype)}"
            yield _quantize(name, layout, fmt, mode, dtype, base=False)
            if fmt in SCALAR_TYPES:
                yield _quantize(name, layout, fmt, mode, dtype, base=True)


def _quantize_layouts() -> Iterator[Sample]:
    """Layouts and swizzled scales, the rest rotating."""
    formats, scalar_formats = cycle(PAYLOAD_DTYPES), cycle(SCALAR_TYPES)
    modes, dtypes = cycle(MODES), cycle(REAL_DTYPES)
    for name, layout in LAYOUTS.items():
        args = next(modes), next(dtypes)
        yield _quantize(name, layout, next(formats), *args, base=False)
        yield _quantize(name, layout, next(scalar_formats), *args, base=True)
    for name, layout in SWIZZLE_LAYOUTS.items():
        for fmt in PAYLOAD_DTYPES if name == "swizzled" else (next(formats),):
            args = next(modes), next(dtypes)
            yield _quantize(f"{name}-{fmt}", layout, fmt, *args, base=False, **SWIZZLED)


def _quantize(
    name: str,
    layout: Layout,
    fmt: str,
    mode: int,
    dtype: torch.dtype,
    *,
    base: bool,
    **kwargs: Any,
) -> Sample:
    element = SCALAR_TYPES[fmt] if base else fmt
    args = (make_input(layout, dtype), layout.dim, layout.block_size, element, mode)
    overload = QUANTIZE.default if base else QUANTIZE.format
    return Sample(f"{overload._overloadname}-{name}", overload, args, kwargs)


def dequantize_samples() -> list[Sample]:
    """Calls of both ``dequantize_mx`` overloads; payload and scale are those of quantized tensors.

    They are as ``quantize_mx`` lays them out or, in the ``restrided`` ones, with other strides.
    """
    samples: list[Sample] = []
    dtypes = cycle(REAL_DTYPES)
    for fmt in PAYLOAD_DTYPES:
        for dtype in REAL_DTYPES:
            samples += _dequantize(f"{fmt}-{_short(dtype)}", LAYOUTS["contiguous"], fmt, dtype)
    formats = cycle(PAYLOAD_DTYPES)
    for name, layout in LAYOUTS.items():
        samples += _dequantize(name, layout, next(formats), next(dtypes))
    for fmt, name in zip(PAYLOAD_DTYPES, cycle(("contiguous", "dim0", "4d_permuted"))):
        label = f"restrided-{name}-{fmt}"
        samples += _dequantize(label, LAYOUTS[name], fmt, next(dtypes), stride=True)
    for name, layout in SWIZZLE_LAYOUTS.items():
        for fmt in PAYLOAD_DTYPES if name == "swizzled" else (next(formats),):
            samples += _dequantize(f"{name}-{fmt}", layout, fmt, next(dtypes), **SWIZZLED)
    # The string overload takes both dtypes of an FP4 payload.
    float4 = next(s for s in samples if s.name.startswith("default-fp4"))
    payload, scale, dim, block_size, dtype = float4.args
    args = (payload, scale, dim, block_size, "fp4_e2m1", dtype)
    samples.append(Sample("format-float4_payload", DEQUANTIZE.format, args, {}))
    return samples


def _dequantize(
    name: str, layout: Layout, fmt: str, dtype: torch.dtype, stride: bool = False, **kwargs: Any
) -> Iterator[Sample]:
    dim, block_size = layout.dim, layout.block_size
    payload, scale = QUANTIZE.format(make_input(layout), dim, block_size, fmt, **kwargs)
    if stride:
        payload, scale = every_second(payload), every_second(scale)
    args = (payload, scale, dim, block_size)
    yield Sample(f"format-{name}", DEQUANTIZE.format, (*args, fmt, dtype), kwargs)
    if fmt in SCALAR_TYPES and not kwargs:
        args = (payload.view(SCALAR_TYPES[fmt]), *args[1:], dtype)
        yield Sample(f"default-{name}", DEQUANTIZE.default, args, kwargs)


def every_second(tensor: Tensor) -> Tensor:
    """The same bytes, every second one of a larger tensor with its dimensions in reverse order."""
    data = tensor.view(torch.uint8)
    reverse = tuple(reversed(range(data.dim())))
    larger = data.permute(reverse).repeat_interleave(2, -1).contiguous()
    return larger[..., ::2].permute(reverse).view(tensor.dtype)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def flat(results: Any) -> tuple[Tensor, ...]:
    """The tensors of a result of either op."""
    return (results,) if isinstance(results, Tensor) else tuple(results)


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes: torch.equal and indexing fail on float8_e8m0fnu and float4_e2m1fn_x2."""
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[tensor.element_size()]
    return tensor.detach().view(unsigned)


def description(results: Any) -> list[tuple[Any, ...]]:
    """Shape, strides, dtype, layout and whether grad is required, of each tensor of a result."""
    return [
        (tuple(t.shape), t.stride(), t.dtype, t.layout, t.storage_offset(), t.requires_grad)
        for t in flat(results)
    ]


def assert_same(actual: Any, expected: Any) -> None:
    """Equal to the byte, the stride and the dtype; results of either op."""
    assert description(actual) == description(expected)
    for got, want in zip(flat(actual), flat(expected), strict=True):
        assert got.device == want.device
        assert torch.equal(bytes_of(got), bytes_of(want))
