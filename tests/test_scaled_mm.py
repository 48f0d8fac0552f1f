"""What ``quantize_mx`` gives is what ``torch.nn.functional.scaled_mm`` takes.

Asked of PyTorch's own checks on meta and fake tensors; the CPU (PyTorch 2.13) refuses MX operands,
so that values are those of ``aten_mx.reference.scaled_mm``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_faults
from oracle import MODES
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType, SwizzleType

import aten_mx
from aten_mx.reference import scaled_mm

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
MX = ScalingType.BlockWise1x32
PLAIN, TILES = SwizzleType.NO_SWIZZLE, SwizzleType.SWIZZLE_32_4_4
SHAPES = [(16, 32, 16), (64, 128, 96), (130, 96, 272), (1, 64, 16), (128, 480, 128)]  # M, K, N

each_dtype = pytest.mark.parametrize("dtype", [E4M3, FP4], ids=["fp8", "fp4"])
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))


def operands(
    x: Tensor, weight: Tensor, dtype: torch.dtype, swizzle: SwizzleType, by_dim_0: bool = False
) -> tuple[Any, ...]:
    """Arguments of scaled_mm for ``x @ weight.t()``; the second operand by either dim."""
    a, scale_a = aten_mx.quantize_mx(x, dim=-1, dtype=dtype, swizzle_type=swizzle)
    if by_dim_0:  # has no swizzled scale of its own
        b, scale_b = aten_mx.quantize_mx(weight.t().contiguous(), dim=0, dtype=dtype)
        if swizzle is TILES:
            scale_b = aten_mx.quantize_mx(weight, dtype=dtype, swizzle_type=swizzle)[1]
    else:
        b, scale_b = aten_mx.quantize_mx(weight, dim=-1, dtype=dtype, swizzle_type=swizzle)
        b, scale_b = b.t(), scale_b.t() if swizzle is PLAIN else scale_b
    return a, b, scale_a, MX, scale_b, MX, swizzle, swizzle


def matrices(shape: tuple[int, int, int], device: str = "cpu") -> tuple[Tensor, Tensor]:
    m, k, n = shape
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(m, k, generator=generator).to(device)
    return x, torch.randn(n, k, generator=generator).to(device)


# --- PyTorch's checks -----------------------------------------------------------------------------


ACCEPTED = [
    (dtype, shape)
    for dtype in (E4M3, FP4)
    for shape in SHAPES
    if dtype is E4M3 or shape[1] <= 128  # test_fp4_above_128_columns
]


@pytest.mark.parametrize("by_dim_0", [False, True], ids=["dim=-1", "dim=0"])
@pytest.mark.parametrize(("dtype", "shape"), ACCEPTED)
def test_accepted_on_meta(dtype: torch.dtype, shape: tuple[int, int, int], by_dim_0: bool) -> None:
    """Meta tensors are held to CUDA's rules: strides, multiples of 16, swizzled element counts."""
    m, _, n = shape
    args = operands(*matrices(shape, "meta"), dtype, TILES, by_dim_0)
    result = F.scaled_mm(*args, output_dtype=torch.bfloat16)
    assert (result.shape, result.dtype, result.device.type) == ((m, n), torch.bfloat16, "meta")


@each_shape
def test_accepted_on_fake(shape: tuple[int, int, int]) -> None:
    m, _, n = shape
    with FakeTensorMode():
        x, weight = torch.empty(m, shape[1]), torch.empty(n, shape[1])
        result = F.scaled_mm(*operands(x, weight, E4M3, TILES), output_dtype=torch.float32)
    assert (result.shape, result.dtype) == ((m, n), torch.float32)


@each_dtype
@each_shape
def test_accepted_by_the_first_scaled_mm(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """``torch._scaled_mm``, which TorchAO calls for FP8, takes the recipe from the scales."""
    m, _, n = shape
    a, b, scale_a, _, scale_b, *_ = operands(*matrices(shape, "meta"), dtype, TILES)
    assert torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16).shape == (m, n)


@torch_faults.STRICTER_META_OF_2_13
def test_unswizzled_scales_are_rocms(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch wants swizzled scales, on ROCm (and for square products only) unswizzled ones."""
    args = operands(*matrices((64, 128, 64), "meta"), E4M3, PLAIN)
    with pytest.raises(RuntimeError, match="Must have swizzle type"):
        F.scaled_mm(*args)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert F.scaled_mm(*args).shape == (64, 64)


@torch_faults.STRICTER_META_OF_2_13
def test_fp4_above_128_columns() -> None:
    """PyTorch 2.13's meta function counts bytes of FP4 for columns: half of the scale's elements.

    Its ``_scaled_mm`` counts columns, as the specified shape does.
    """
    a, b, scale_a, _, scale_b, *rest = operands(*matrices((128, 256, 64), "meta"), FP4, TILES)
    with pytest.raises(RuntimeError, match=r"scale_a must have 512 \(got: 1024\)"):
        F.scaled_mm(a, b, scale_a, MX, scale_b, *rest)
    assert torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16).shape == (128, 64)


@each_dtype
def test_refused_on_cpu(dtype: torch.dtype) -> None:
    """Why there is a stand-in: once this fails, PyTorch has a kernel of its own to test with."""
    for swizzle in (PLAIN, TILES):
        with pytest.raises((ValueError, RuntimeError), match=r"CPU|scaling"):
            F.scaled_mm(*operands(*matrices((16, 32, 16)), dtype, swizzle))


# --- the stand-in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by_dim_0", [False, True], ids=["dim=-1", "dim=0"])
@pytest.mark.parametrize("swizzle", [PLAIN, TILES], ids=["plain", "swizzled"])
@each_shape
@each_dtype
def test_product_of_what_was_stored(
    dtype: torch.dtype, shape: tuple[int, int, int], swizzle: SwizzleType, by_dim_0: bool
) -> None:
    """The same bits however the operands come, and those of the dequantized matrices."""
    x, weight = matrices(shape)
    args = operands(x, weight, dtype, swizzle, by_dim_0)
    bias = torch.linspace(-1, 1, shape[2])
    stored = [aten_mx.dequantize_mx(*aten_mx.quantize_mx(t, dtype=dtype)) for t in (x, weight)]
    expected = (stored[0] @ stored[1].t() + bias).to(torch.bfloat16)
    assert torch.equal(scaled_mm(*args, bias=bias), expected)
    if swizzle is TILES:  # PyTorch checks the number of elements, and TorchAO gives them flat
        a, b, scale_a, _, scale_b, *rest = args
        flat = (a, b, scale_a.flatten(), MX, scale_b.flatten(), *rest)
        assert torch.equal(scaled_mm(*flat, bias=bias), expected)


@pytest.mark.parametrize("mode", MODES)
@each_dtype
def test_exact_products(dtype: torch.dtype, mode: str) -> None:
    """Operands that the format holds exactly give their exact product, in any dtype."""
    values = torch.tensor([-4.0, -1.5, -1.0, 0.0, 0.5, 1.0, 3.0, 4.0])  # 4: no mode scales it
    pick = torch.Generator().manual_seed(3)
    x = values[torch.randint(len(values), (5, 64), generator=pick)]
    weight = values[torch.randint(len(values), (3, 64), generator=pick)]
    sides = [aten_mx.quantize_mx(t, dtype=dtype, scale_calculation_mode=mode) for t in (x, weight)]
    (a, scale_a), (b, scale_b) = sides
    product = scaled_mm(a, b.t(), scale_a, MX, scale_b.t(), MX, output_dtype=torch.float32)
    assert torch.equal(product, x @ weight.t())


def test_errors() -> None:
    a, b, scale_a, _, scale_b, *_ = operands(*matrices((16, 64, 16)), E4M3, PLAIN)
    with pytest.raises(ValueError, match=r"must be ScalingType\.BlockWise1x32, got"):
        scaled_mm(a, b, scale_a, MX, scale_b, ScalingType.TensorWise)
    with pytest.raises(ValueError, match=r"mat_b, transposed, .* strides \[1, 16\]"):
        scaled_mm(a, b.contiguous(), scale_a, MX, scale_b, MX)
    with pytest.raises(ValueError, match=r"mat_a must be a contiguous matrix, got shape \[64\]"):
        scaled_mm(a[0], b, scale_a, MX, scale_b, MX)
    with pytest.raises(ValueError, match=r"the same K, got shapes \[16, 32\] and \[64, 16\]"):
        scaled_mm(a[:, :32].contiguous(), b, scale_a, MX, scale_b, MX)
    with pytest.raises(ValueError, match="scale must have shape"):
        scaled_mm(a, b, scale_a, MX, scale_b, MX, swizzle_a=TILES)
    with pytest.raises(TypeError, match=r"got torch\.float32"):
        scaled_mm(a.float(), b, scale_a, MX, scale_b, MX, swizzle_a=TILES)
