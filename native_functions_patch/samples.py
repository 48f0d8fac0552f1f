"""Calls on which the op in core's place and the package's must agree to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from aten_mx.formats import FORMAT_OF_DTYPE, FORMATS
from aten_mx.scaling import ScaleCalculationMode

E4M3 = torch.float8_e4m3fn
FP4 = torch.float4_e2m1fn_x2
REAL = (torch.float32, torch.bfloat16, torch.float16)
# shape and dim, then a view of the tensor
LAYOUTS: tuple[tuple[tuple[int, ...], int, Callable[[Tensor], Tensor]], ...] = (
    ((4, 64), -1, lambda x: x),
    ((64, 5), 0, lambda x: x),
    ((2, 64, 3), 1, lambda x: x),
    ((64, 6), 1, lambda x: x.t()),
    ((5, 128), -1, lambda x: x[1:, 32:96]),
    ((4, 192), 1, lambda x: x[:, ::3]),
    ((0, 64), -1, lambda x: x),
    ((33, 96), -1, lambda x: x),
)


def _values(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All magnitudes, subnormal ones and non-finite blocks among them."""
    generator = torch.Generator().manual_seed(len(shape))
    bits = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64)
    wild = bits.to(torch.int32).view(torch.float32)
    tame = torch.randn(shape, generator=generator)
    rows = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)) if shape else torch.tensor(0)
    return torch.where(rows % 2 == 0, tame, wild).to(dtype)


def calls() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Name and arguments of ``quantize_mx`` calls, over formats, modes, dtypes and layouts."""
    for shape, dim, view in LAYOUTS:
        for dtype in REAL:
            x = view(_values(shape, dtype))
            for mode in range(len(ScaleCalculationMode)):
                for element in (*FORMAT_OF_DTYPE, *FORMATS):
                    yield f"{shape} {dtype} {element} {mode}", (x, dim, 32, element, mode), {}
            if dim == -1:
                yield f"{shape} {dtype} swizzled", (x, dim, 32, "fp4_e2m1"), {"swizzle_type": 1}


def flat(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result of either op."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def same(actual: Any, expected: Any) -> bool:
    """Equal dtypes, shapes, strides and bytes."""
    pairs = list(zip(flat(actual), flat(expected), strict=True))
    return all(
        (a.dtype, a.shape, a.stride()) == (e.dtype, e.shape, e.stride())
        and torch.equal(as_bytes(a), as_bytes(e))
        for a, e in pairs
    )


def as_bytes(tensor: Tensor) -> Tensor:
    """The bits, in a dtype that can be compared and indexed."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
