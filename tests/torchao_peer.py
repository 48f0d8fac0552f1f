"""For ``test_torchao*.py``: TorchAO's casts and the ops side by side, and inputs for both."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from cases import SCALAR_TYPES
from oracle import FORMATS, MODES
from torch import Tensor

# Importing TorchAO logs that optional extensions fail to load, but warns of nothing: no filter.
from torchao.prototype.mx_formats import config, mx_tensor

import aten_mx  # noqa: F401  (registers the ops)
from aten_mx.integrations import torchao as switch

BLOCK_SIZE = 32
PEER_FORMATS = [fmt for fmt in FORMATS if fmt != "int8"]  # test_difference_no_int8
INPUT_DTYPES = [torch.float32, torch.bfloat16]  # test_difference_no_float16_input
# What TorchAO calls them: dtypes, and the FP6 formats by strings, as we do.
ELEMENTS = {fmt: SCALAR_TYPES.get(fmt, fmt) for fmt in FORMATS}
QUANTIZE = torch.ops.aten_mx.quantize_mx.format
DEQUANTIZE = torch.ops.aten_mx.dequantize_mx.format

each_format = pytest.mark.parametrize("fmt", PEER_FORMATS)
each_element = pytest.mark.parametrize(
    "element", [ELEMENTS[fmt] for fmt in PEER_FORMATS], ids=PEER_FORMATS
)
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
each_input_dtype = pytest.mark.parametrize("dtype", INPUT_DTYPES, ids=lambda d: str(d)[6:])


# --- the two sides, as bytes: e8m0 and float4 lack comparisons ------------------------------------


def theirs(
    x: Tensor, fmt: str, mode: int, swizzled: bool = False, block_size: int = BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of ``to_mx``, which returns the scale first."""
    scaling_mode = config.ScaleCalculationMode(list(MODES)[mode])
    scale, output = mx_tensor.to_mx(x, ELEMENTS[fmt], block_size, scaling_mode, swizzled)
    assert scale.dtype is torch.float8_e8m0fnu
    return output.view(torch.uint8), scale.view(torch.uint8)


def ours(
    x: Tensor, fmt: str, mode: int, swizzled: bool = False, block_size: int = BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """Payload and scale bytes of the op."""
    output, scale = QUANTIZE(x, -1, block_size, fmt, mode, swizzle_type=int(swizzled))
    return output.view(torch.uint8), scale.view(torch.uint8)


def dequantized(payload: Tensor, scale: Tensor, fmt: str, dtype: torch.dtype) -> list[Tensor]:
    """The op's and TorchAO's result for the same bytes."""
    if fmt.startswith("fp8"):
        payload = payload.view(SCALAR_TYPES[fmt])
    scale = scale.view(torch.float8_e8m0fnu)
    return [
        DEQUANTIZE(payload, scale, -1, BLOCK_SIZE, fmt, dtype),
        mx_tensor.to_dtype(payload, scale, ELEMENTS[fmt], BLOCK_SIZE, dtype),
    ]


# --- the switch -----------------------------------------------------------------------------------


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What it gives without the switch and with it."""
    off = function()
    with switch.enabled():
        return off, function()


def same_bits(a: Tensor, b: Tensor) -> bool:
    assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    a, b = (t.detach().contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


# --- inputs ---------------------------------------------------------------------------------------


@cache
def random_blocks() -> Tensor:
    """Normal values: plain, at magnitudes over float32's range, and with a large spread inside."""
    generator = torch.Generator().manual_seed(86)
    normal = torch.randn(1024, BLOCK_SIZE, generator=generator)
    magnitude = torch.randint(-110, 124, (1024, 1), generator=generator)
    spread = torch.randint(-40, 1, normal.shape, generator=generator)
    return torch.cat(
        (
            normal,
            torch.ldexp(normal, magnitude),
            torch.ldexp(normal, spread),
            torch.ldexp(normal, magnitude + spread),  # down to subnormals and zeros
        )
    )


@cache
def bfloat16_maxima() -> Tensor:
    """Every bfloat16 magnitude, NaN and Inf too, as block maximum of either sign."""
    largest = torch.arange(1 << 15, dtype=torch.int16).view(torch.bfloat16).float()
    return largest.unsqueeze(1) * torch.linspace(-1, 1, BLOCK_SIZE)


@cache
def float32_thresholds() -> Tensor:
    """Maxima at which some mode raises the exponent, and their neighbours, in every binade."""
    significands = {1.0} | {fmt.max_normal / 2.0**fmt.emax for fmt in FORMATS.values()}
    significands |= {2 - 2.0 ** -(fmt.mantissa_bits + 1) for fmt in FORMATS.values()}
    bits = torch.tensor(sorted(significands)).view(torch.int32).unsqueeze(1)
    bits = (bits + torch.arange(-3, 4, dtype=torch.int32)).flatten()
    binades = torch.arange(-126, 127, dtype=torch.int32).unsqueeze(1) << 23
    largest = (bits + binades).clamp(1, 0x7F7FFFFF).view(torch.float32).flatten()
    return largest.unsqueeze(1) * torch.linspace(1, -1, BLOCK_SIZE)
