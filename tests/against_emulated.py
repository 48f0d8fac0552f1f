"""A kernel's outputs against the emulated kernel's; for checks in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from sample_calls import bytes_of
from torch import Tensor

from aten_mx import emulated


def assert_same(got: Tensor, want: Tensor, what: object) -> None:
    """Equal to the byte, the dtype and the stride."""
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), what
    assert torch.equal(bytes_of(got), bytes_of(want)), what


def compare_quantize(
    kernel: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    dim: int,
    block_size: int,
    fmt: str,
    mode: int,
    swizzle: int = 0,
) -> tuple[Tensor, Tensor]:
    """The kernel's outputs, the same as the emulated ones, computed without the dispatcher."""
    outputs = kernel(x, dim, block_size, fmt, mode, swizzle_type=swizzle)
    expected = emulated.quantize_mx(x, dim, block_size, fmt, mode, swizzle_type=swizzle)
    what = (x.dtype, x.shape, x.stride(), dim, block_size, fmt, mode, swizzle)
    for got, want in zip(outputs, expected, strict=True):
        assert_same(got, want, what)
    return outputs


def compare_dequantize(
    kernel: Callable[..., Tensor],
    payload: Tensor,
    scale: Tensor,
    *args: Any,
    swizzle: int = 0,
) -> None:
    """As :func:`compare_quantize`; ``args`` are dim, block size, format and dtype."""
    got = kernel(payload, scale, *args, swizzle_type=swizzle)
    want = emulated.dequantize_mx(payload, scale, *args, swizzle_type=swizzle)
    assert_same(got, want, (payload.shape, payload.stride(), *args, swizzle))


def numbers(rows: int) -> Iterator[Tensor]:
    """Float32 tensors of shape (rows, 128): any bits, any magnitude, subnormals, special blocks."""
    random = torch.Generator().manual_seed(0)
    shape = (rows, 128)
    any_bits = torch.randint(-(2**31), 2**31, shape, generator=random, dtype=torch.int64)
    yield any_bits.to(torch.int32).view(torch.float32)
    values = torch.randn(shape, generator=random)
    exponents = torch.randint(0, 254, (rows, 1), generator=random) - 127
    yield torch.ldexp(values, exponents.to(torch.float32).expand(shape))
    magnitudes = torch.randint(0, 2**24, shape, generator=random, dtype=torch.int32)
    signs = torch.randint(-1, 1, shape, generator=random, dtype=torch.int32) << 31
    yield (magnitudes | signs).view(torch.float32)
    special = values.clone()
    special[:, ::2] = -0.0
    special[5] = 0
    special[6] = -0.0
    special[7, 3] = torch.nan
    special[8, 40] = -torch.inf
    yield special
