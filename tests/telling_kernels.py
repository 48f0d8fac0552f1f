"""Kernels that tell what they were called with, or that they answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import aten_mx
from aten_mx import emulated

EMULATED = 0x78  # the payload byte of 1.0 under its block's own scale, in fp8_e4m3


class Recorder:
    """The emulated kernel of an op, with the arguments it was called with."""

    def __init__(self, op: str = "quantize_mx") -> None:
        self.kernel = getattr(emulated, op)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.kernel(*args, **kwargs)


@contextmanager
def registered(*args: Any, **kwargs: Any) -> Iterator[aten_mx.KernelHandle]:
    handle = aten_mx.register_kernel(*args, **kwargs)
    try:
        yield handle
    finally:
        handle.unregister()


def tell(value: int) -> Callable[..., Any]:
    """A kernel whose payload says who made it."""

    def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):
        output, scale = emulated.quantize_mx(self, dim, block_size, elem_format, mode)
        return output.view(torch.uint8).fill_(value).view(output.dtype), scale

    return kernel


def told() -> int:
    output, _ = torch.ops.aten_mx.quantize_mx(torch.ones(1, 32), -1, 32, torch.float8_e4m3fn)
    return int(output.view(torch.uint8)[0, 0])
