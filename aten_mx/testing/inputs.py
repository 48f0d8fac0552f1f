"""Inputs that find wrong kernels: every exponent and threshold, every bit pattern, every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from aten_mx.formats import FLOAT32_MANTISSA_BITS, ElementFormat
from aten_mx.scaling import ScaleCalculationMode

BLOCK_SIZE = 32
_FLOAT32_MAGNITUDE = 0x7FFFFFFF


class Layout(NamedTuple):
    """A ``view`` of a contiguous tensor of shape ``base``, blocked along ``dim``."""

    base: tuple[int, ...]
    dim: int
    view: Callable[[Tensor], Tensor] = lambda x: x
    block_size: int = BLOCK_SIZE


LAYOUTS: dict[str, Layout] = {
    "contiguous": Layout((8, 256), -1),
    "one row": Layout((1, 4096), -1),
    "dim 0": Layout((128, 33), 0),
    "transposed": Layout((96, 7), 1, lambda x: x.t()),
    "transposed, dim 0": Layout((7, 96), 0, lambda x: x.t()),
    "rows and columns cut": Layout((9, 160), -1, lambda x: x[1:, 32:128]),
    "odd offset": Layout((5, 65), -1, lambda x: x[:, 1:]),
    "every third": Layout((4, 192), 1, lambda x: x[:, ::3]),
    "expanded rows": Layout((1, 64), -1, lambda x: x.expand(5, 64)),
    "one value expanded": Layout((4, 1), -1, lambda x: x.expand(4, 64)),
    "1 dimension": Layout((96,), 0),
    "3 dimensions, middle": Layout((3, 64, 5), 1),
    "4 dimensions, first": Layout((64, 2, 3, 2), -4),
    "4 dimensions, permuted": Layout((2, 3, 64, 2), 1, lambda x: x.permute(3, 2, 0, 1)),
    "sizes of 1": Layout((1, 2, 1, 64), 3),
    "block size 2": Layout((3, 10), -1, block_size=2),
    "block size 16, dim 0": Layout((48, 5), 0, block_size=16),
    "block size 30": Layout((3, 90), -1, block_size=30),
    "block size 64": Layout((2, 192), -1, block_size=64),
    "block size 128": Layout((3, 256), -1, block_size=128),
}
EMPTY: dict[str, Layout] = {
    "no rows": Layout((0, 64), -1),
    "no columns, dim 0": Layout((64, 0), 0),
    "no blocks": Layout((4, 0), -1),
    "no blocks, dim 0": Layout((0, 4), 0),
    "nothing in the middle": Layout((2, 0, 64), 2),
}
SWIZZLED: dict[str, Layout] = {
    "one tile": Layout((128, 128), -1),
    "padded": Layout((5, 96), -1),
    "many tiles": Layout((130, 288), -1),
    "transposed": Layout((160, 130), 1, lambda x: x.t()),
    "leading dimensions": Layout((2, 129, 32), 2),
    "no rows": Layout((0, 64), -1),
    "no blocks": Layout((4, 0), -1),
}


def values(layout: Layout, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers whose blocks have very different magnitudes, with zeros and negative zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(layout.base, generator=generator)
    exponent = torch.randint(-12, 12, layout.base, generator=generator)
    x = torch.ldexp(x, exponent.to(torch.float32))
    x[torch.rand(layout.base, generator=generator) < 0.02] = -0.0
    return layout.view(x.to(dtype))


def every_maximum(dtype: torch.dtype) -> Tensor:
    """All 65,536 bit patterns of a 16-bit dtype, each the largest magnitude of its own block."""
    pattern = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).unsqueeze(-1)
    magnitude = pattern & 0x7FFF
    return _smaller_beside(pattern, magnitude).to(torch.int16).view(dtype)


def float32_maxima(fmt: ElementFormat, mode: ScaleCalculationMode) -> Tensor:
    """Every exponent with the significands on both sides of each mode's threshold and of ties."""
    carry = (1 << FLOAT32_MANTISSA_BITS) - mode.rounding_addend(fmt)
    half_ulp = 1 << (FLOAT32_MANTISSA_BITS - fmt.mantissa_bits - 1)
    top = fmt.max_mantissa << (FLOAT32_MANTISSA_BITS - fmt.mantissa_bits)
    points = (0, half_ulp, 3 * half_ulp, carry, top, top + half_ulp)
    last = (1 << FLOAT32_MANTISSA_BITS) - 1
    fractions = sorted({min(max(p + d, 0), last) for p in points for d in (-1, 0, 1)} | {last})
    exponents = torch.arange(256, dtype=torch.int64).unsqueeze(-1) << FLOAT32_MANTISSA_BITS
    magnitude = (exponents + torch.tensor(fractions)).reshape(-1, 1)
    return _smaller_beside(magnitude, magnitude).to(torch.int32).view(torch.float32)


def _smaller_beside(first: Tensor, magnitude: Tensor) -> Tensor:
    """Blocks that begin with ``first``; the rest are magnitudes up to its own, of either sign."""
    generator = torch.Generator().manual_seed(0)
    rest_shape = (len(first), BLOCK_SIZE - 1)
    random = torch.randint(0, _FLOAT32_MAGNITUDE, rest_shape, generator=generator)
    rest = random % (magnitude + 1)
    # Half of them near the maximum, where the codes are large; the others reach down to subnormals.
    near = magnitude - random % (magnitude // 64 + 1)
    rest = torch.where(torch.rand(rest_shape, generator=generator) < 0.5, near, rest)
    sign_bit = 1 << 15 if int(magnitude.max()) < 1 << 15 else 1 << 31
    negative = torch.rand(rest_shape, generator=generator) < 0.5
    return torch.cat([first.to(torch.int64), rest + sign_bit * negative], -1)
