"""What the front doors take for the mode and the swizzle, and the error for anything else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from sample_calls import assert_same
from torch.nn.functional import ScalingType
from torch.nn.functional import SwizzleType as TorchSwizzleType

import aten_mx
from aten_mx import SwizzleType
from aten_mx.reference import scaled_mm
from aten_mx.scaling import unknown_mode_message

X = torch.linspace(-3, 5, 256).reshape(4, 64)
UNKNOWN_SWIZZLES = [2, -1, 1.5, "1", "SWIZZLE_32_4_4", None, [1], torch.int8]
SWIZZLE_TEXT = "swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got {}"


@pytest.mark.parametrize(
    "swizzle", [1, True, SwizzleType(1), TorchSwizzleType.SWIZZLE_32_4_4], ids=repr
)
def test_known_swizzle(swizzle: Any) -> None:
    want = torch.ops.aten_mx.quantize_mx.format(X, -1, 32, "fp8_e4m3", swizzle_type=1)
    output, scale = aten_mx.quantize_mx(X, swizzle_type=swizzle)
    assert_same((output, scale), want)
    back = aten_mx.dequantize_mx(output, scale, swizzle_type=swizzle)
    assert_same(back, aten_mx.dequantize_mx(*aten_mx.quantize_mx(X)))


@pytest.mark.parametrize("swizzle", UNKNOWN_SWIZZLES, ids=repr)
def test_unknown_swizzle(swizzle: Any) -> None:
    """1.5 and "1" were taken for 1, and other texts got the error of ``int()``."""
    text = re.escape(SWIZZLE_TEXT.format(swizzle))
    with pytest.raises(ValueError, match=f"^quantize_mx: {text}$"):
        aten_mx.quantize_mx(X, swizzle_type=swizzle)
    output, scale = aten_mx.quantize_mx(X)
    with pytest.raises(ValueError, match=f"^dequantize_mx: {text}$"):
        aten_mx.dequantize_mx(output, scale, swizzle_type=swizzle)
    with pytest.raises(ValueError, match=text):
        scaled_mm(output, output.t(), scale, 3, scale.t(), 3, swizzle)


@pytest.mark.parametrize("mode", [99, -1, 1.5, "flor", None, [1], (0, 1)], ids=repr)
def test_unknown_mode(mode: Any) -> None:
    """A list had the error of ``hash()``."""
    text = re.escape(unknown_mode_message(mode))
    with pytest.raises(ValueError, match=text):
        aten_mx.quantize_mx(X, scale_calculation_mode=mode)


@pytest.mark.parametrize("swizzle", ["x", 9], ids=repr)
def test_an_earlier_fault_wins(swizzle: Any) -> None:
    with pytest.raises(IndexError, match="dim must be in"):
        aten_mx.quantize_mx(X, dim=2, swizzle_type=swizzle)
    with pytest.raises(ValueError, match="scale_calculation_mode"):
        aten_mx.quantize_mx(X, scale_calculation_mode="flor", swizzle_type=swizzle)
    output, scale = aten_mx.quantize_mx(X)
    with pytest.raises(TypeError, match="dtype must be"):
        aten_mx.dequantize_mx(output, scale, dtype=torch.int8, swizzle_type=swizzle)
    with pytest.raises(ValueError, match="swizzle_type"):  # and not a later one
        aten_mx.quantize_mx(X, block_size=0, swizzle_type=swizzle)


def test_unknown_recipe() -> None:
    output, scale = aten_mx.quantize_mx(X)
    for recipe in (0, "x", None, ScalingType.TensorWise):
        with pytest.raises(ValueError, match=re.escape(f"BlockWise1x32, got {recipe}")):
            scaled_mm(output, output.t(), scale, recipe, scale.t(), recipe)


def test_a_mode_that_dynamo_makes_a_symbol() -> None:
    """An int argument of the function, unless it is 0 or 1, once sizes are dynamic."""

    def function(x: torch.Tensor, mode: int) -> Any:
        return aten_mx.quantize_mx(x, scale_calculation_mode=mode)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    for mode in (2, 3):
        assert_same(compiled(X, mode), function(X, mode))
