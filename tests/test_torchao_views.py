"""Slices and views of an ``MXTensor`` under the switch, which have other strides than they were
quantized in, or a scale of another shape: they dequantize to the slice or view of the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from sample_calls import bytes_of
from torch import Tensor
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao_peer import ELEMENTS, PEER_FORMATS, each_element

from aten_mx.integrations import torchao as switch

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2

each_swizzle = pytest.mark.parametrize("swizzled", [False, True], ids=["plain", "swizzled"])

# A slice of the others has half of what it should in TorchAO 0.18: docs/torchao.md.
each_sliceable = pytest.mark.parametrize("element", [E4M3, FP4], ids=["fp8_e4m3", "fp4_e2m1"])


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    with switch.enabled():
        yield


def numbers(*shape: int) -> Tensor:
    """Each block of 32 has a scale of its own."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(*shape[:-1], shape[-1] // 32, 32, generator=generator)
    exponents = torch.arange(blocks[..., 0].numel()).reshape(blocks[..., :1].shape) % 40
    return torch.ldexp(blocks, exponents).flatten(-2)


def assert_dequantizes_to(mx: MXTensor, want: Tensor) -> None:
    got = mx.dequantize()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert torch.equal(bytes_of(got), bytes_of(want))


@each_sliceable
@each_swizzle
def test_slice_of_columns(element: torch.dtype, swizzled: bool) -> None:
    """It isn't contiguous, and was read as transposed: wrong numbers where rows hold blocks."""
    mx = MXTensor.to_mx(numbers(64, 128), element, is_swizzled_scales=swizzled)
    assert_dequantizes_to(mx[:, :64], mx.dequantize()[:, :64])


@each_sliceable
def test_slice_of_rows(element: torch.dtype) -> None:
    mx = MXTensor.to_mx(numbers(64, 128), element)
    assert_dequantizes_to(mx[32:], mx.dequantize()[32:])


@each_element
@each_swizzle
@pytest.mark.parametrize(
    ("shape", "view"),
    [((64, 128), (2, 32, 128)), ((256, 64), (2, 128, 64)), ((2, 128, 64), (256, 64))],
    ids=str,
)
def test_view(
    element: torch.dtype | str, swizzled: bool, shape: tuple[int, ...], view: tuple[int, ...]
) -> None:
    """The view keeps the scale, whose tiles are those of the shape before."""
    mx = MXTensor.to_mx(numbers(*shape), element, is_swizzled_scales=swizzled)
    assert_dequantizes_to(mx.view(view), mx.dequantize().view(view))


def test_difference_gradient() -> None:
    """TorchAO's FP8 casts let autograd through, its FP4 and FP6 ones don't; the op's never do."""
    for element in (ELEMENTS[fmt] for fmt in PEER_FORMATS):
        x = numbers(2, 64).requires_grad_()
        assert not MXTensor.to_mx(x, element).dequantize().requires_grad
        switch.disable()
        flows = MXTensor.to_mx(x, element).dequantize().requires_grad
        assert flows == (element in (E4M3, torch.float8_e5m2))
        switch.enable()
