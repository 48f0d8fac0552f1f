"""Every row of the specification's error table: type and text, the same from everywhere.

Which of two faults wins is ``test_errors_order.py``'s.
"""
# ruff: noqa: E501  (expected texts stand as they are printed)

from __future__ import annotations

import pytest
import torch
from error_calls import (
    CONTAINED,
    E4M3,
    E8M0,
    FP4,
    SAME,
    ErrorTest,
    back,
    back_fmt,
    base,
    error_of,
    fmt,
    raw,
    zeros,
)
from torch import Tensor
from torch._subclasses import FakeTensorMode
from under_test import cpu_alone

pytestmark = pytest.mark.contract

KINDS_OF_THE_CPU = cpu_alone("which kinds of tensors a device has is its own affair")
# Kinds of tensors that PyTorch warns about when one is made.
BETA = pytest.mark.filterwarnings(
    "ignore:Sparse [A-Z]* tensor",
    "ignore:torch.quantize_per_tensor",
    "ignore:The PyTorch API of nested tensors",
)


def quantized_tensor(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 1.0, 0, torch.qint8)


def nested_tensors(x: Tensor) -> list[Tensor]:
    return [torch.nested.nested_tensor([x, x], layout=lay) for lay in (torch.strided, torch.jagged)]


# fmt: off


class TestQuantize(ErrorTest):
    def test_1_dtype(self) -> None:
        """triton#11897: float64 would round twice, so it is refused and not converted."""
        for dtype in (torch.float64, torch.complex64, torch.bool, torch.int32, torch.uint8, E4M3):
            x = zeros(4, 64, dtype=dtype)
            text = "quantize_mx: self must be torch.float32, torch.bfloat16 or torch.float16, got "
            contained = CONTAINED if dtype is torch.float64 else {}
            self.check(TypeError, f"{text}{dtype}", base(x), fmt(x), contained=contained)

    @KINDS_OF_THE_CPU
    @BETA
    def test_1_layout(self) -> None:
        x = zeros(4, 64)
        coo = x.to_sparse()
        self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got layout torch.sparse_coo""", base(coo), fmt(coo))
        csr = x.to_sparse_csr()
        self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got layout torch.sparse_csr""", base(csr), fmt(csr))
        bsr = x.to_sparse_bsr((2, 2))
        self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got layout torch.sparse_bsr""", base(bsr), fmt(bsr))
        for sparse in (coo, csr, bsr):
            assert type(error_of(SAME["meta"], base(sparse))) is TypeError
        mkldnn = x.to_mkldnn()
        self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got layout torch._mkldnn""", base(mkldnn), fmt(mkldnn))
        quantized = quantized_tensor(x)
        self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got a quantized tensor of dtype torch.qint8""", base(quantized), fmt(quantized))
        for nested in nested_tensors(x):
            self.check_eager(TypeError, """quantize_mx: self must be a dense strided tensor, got a nested tensor""", base(nested), fmt(nested))

    def test_2_dim(self) -> None:
        x = zeros()
        self.check(IndexError, """quantize_mx: self must have at least one dimension, got shape []""", base(x, 0), fmt(x, 0))
        self.check(IndexError, """quantize_mx: dim must be in [-2, 1] for a tensor of rank 2, got 2""", base(dim=2), fmt(dim=2))
        self.check(IndexError, """quantize_mx: dim must be in [-2, 1] for a tensor of rank 2, got -3""", base(dim=-3), fmt(dim=-3))

    def test_3_format(self) -> None:
        self.check(ValueError, """quantize_mx: elem_format must be one of fp8_e4m3, fp8_e5m2, fp6_e2m3, fp6_e3m2, fp4_e2m1, int8, got fp8""", fmt(elem_format="fp8"))

    def test_4_element_dtype(self) -> None:
        self.check(TypeError, """quantize_mx: dtype must be torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2 or torch.int8, got torch.uint8""", base(dtype=torch.uint8))
        self.check(TypeError, """quantize_mx: dtype must be torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2 or torch.int8, got torch.float8_e8m0fnu""", base(dtype=torch.float8_e8m0fnu))

    def test_5_mode(self) -> None:
        self.check(ValueError, """quantize_mx: scale_calculation_mode must be one of 0 (floor), 1 (ceil), 2 (even), 3 (rceil), got 99""", base(mode=99), fmt(mode=99))
        self.check(ValueError, """quantize_mx: scale_calculation_mode must be one of 0 (floor), 1 (ceil), 2 (even), 3 (rceil), got -1""", base(mode=-1), fmt(mode=-1))

    def test_5_swizzle(self) -> None:
        self.check(ValueError, """quantize_mx: swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got 2""", fmt(swizzle=2))
        self.check(ValueError, """quantize_mx: swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got -1""", fmt(swizzle=-1))

    def test_6_block_size(self) -> None:
        """tokenspeed#645: a padded width was passed as block size."""
        self.check(ValueError, """quantize_mx: block_size must be at least 1, got 0""", base(block_size=0), fmt(block_size=0))
        self.check(ValueError, """quantize_mx: block_size must be at least 1, got -32""", base(block_size=-32), fmt(block_size=-32))
        self.check(ValueError, """quantize_mx: size 64 of dim 1 must be a multiple of block_size 33, got shape [4, 64]""", base(block_size=33), fmt(block_size=33))
        self.check(ValueError, """quantize_mx: size 64 of dim 1 must be a multiple of block_size 4096, got shape [4, 64]""", base(block_size=4096), fmt(block_size=4096))
        odd = base(zeros(3, 33), block_size=33, dtype=FP4)
        self.check(ValueError, """quantize_mx: block_size must be even for fp4_e2m1 (two codes per byte), got 33""", odd, fmt(zeros(3, 33), -1, 33, "fp4_e2m1"))

    def test_6_size(self) -> None:
        """TransformerEngine#2966: token counts that 32 does not divide. Never a mixed block."""
        x = zeros(3, 33)
        self.check(ValueError, """quantize_mx: size 33 of dim 1 must be a multiple of block_size 32, got shape [3, 33]""", base(x), fmt(x))
        x = zeros(3, 31)
        self.check(ValueError, """quantize_mx: size 31 of dim 1 must be a multiple of block_size 32, got shape [3, 31]""", base(x), fmt(x))
        x = zeros(3, 1)
        self.check(ValueError, """quantize_mx: size 1 of dim 1 must be a multiple of block_size 32, got shape [3, 1]""", base(x), fmt(x))
        x = zeros(48, 0, 2)
        self.check(ValueError, """quantize_mx: size 48 of dim 0 must be a multiple of block_size 32, got shape [48, 0, 2]""", base(x, -3), fmt(x, 0))

    def test_7_swizzle(self) -> None:
        self.check(ValueError, """quantize_mx: swizzle_type 1 needs rank 2 or more, got 1""", fmt(zeros(64), swizzle=1))
        self.check(ValueError, """quantize_mx: swizzle_type 1 needs the last dim, got dim 0""", fmt(zeros(64, 64), 0, swizzle=1))
        self.check(ValueError, """quantize_mx: swizzle_type 1 needs block_size 32, got 16""", fmt(block_size=16, swizzle=1))


class TestDequantize(ErrorTest):
    @KINDS_OF_THE_CPU
    @BETA
    def test_1_layout(self) -> None:
        x = zeros(4, 64)
        coo = x.to_sparse()
        self.check_eager(TypeError, """dequantize_mx: self must be a dense strided tensor, got layout torch.sparse_coo""", back(coo), back_fmt(coo))
        mkldnn = x.to_mkldnn()
        self.check_eager(TypeError, """dequantize_mx: self must be a dense strided tensor, got layout torch._mkldnn""", back(mkldnn), back_fmt(mkldnn))
        quantized = quantized_tensor(x)
        self.check_eager(TypeError, """dequantize_mx: self must be a dense strided tensor, got a quantized tensor of dtype torch.qint8""", back(quantized), back_fmt(quantized))
        for nested in nested_tensors(x):
            self.check_eager(TypeError, """dequantize_mx: self must be a dense strided tensor, got a nested tensor""", back(nested), back_fmt(nested))

    def test_2_dim(self) -> None:
        x, scale = raw(dtype=E4M3), raw()
        self.check(IndexError, """dequantize_mx: self must have at least one dimension, got shape []""", back(x, scale), back_fmt(x, scale))
        self.check(IndexError, """dequantize_mx: dim must be in [-2, 1] for a tensor of rank 2, got 2""", back(dim=2), back_fmt(dim=2))
        self.check(IndexError, """dequantize_mx: dim must be in [-2, 1] for a tensor of rank 2, got -3""", back(dim=-3), back_fmt(dim=-3))

    def test_3_format(self) -> None:
        self.check(ValueError, """dequantize_mx: elem_format must be one of fp8_e4m3, fp8_e5m2, fp6_e2m3, fp6_e3m2, fp4_e2m1, int8, got E4M3""", back_fmt(elem_format="E4M3"))

    def test_4_output_dtype(self) -> None:
        self.check(TypeError, """dequantize_mx: dtype must be torch.float32, torch.bfloat16 or torch.float16, got torch.float64""", back(dtype=torch.float64), back_fmt(dtype=torch.float64))
        self.check(TypeError, """dequantize_mx: dtype must be torch.float32, torch.bfloat16 or torch.float16, got torch.float8_e4m3fn""", back(dtype=E4M3), back_fmt(dtype=E4M3))

    def test_5_swizzle(self) -> None:
        self.check(ValueError, """dequantize_mx: swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got 3""", back_fmt(swizzle=3))

    def test_6_block_size(self) -> None:
        self.check(ValueError, """dequantize_mx: block_size must be at least 1, got 0""", back(block_size=0), back_fmt(block_size=0))
        self.check(ValueError, """dequantize_mx: size 64 of dim 1 must be a multiple of block_size 48, got shape [4, 64]""", back(block_size=48), back_fmt(block_size=48))
        # The size is that of the values: two per byte.
        x, scale = raw(4, 24, dtype=FP4), raw(4, 1)
        packed = back_fmt(x, scale, elem_format="fp4_e2m1")
        self.check(ValueError, """dequantize_mx: size 48 of dim 1 must be a multiple of block_size 32, got shape [4, 24]""", back(x, scale), packed)
        odd = back_fmt(x, scale, block_size=3, elem_format="fp4_e2m1")
        self.check(ValueError, """dequantize_mx: block_size must be even for fp4_e2m1 (two codes per byte), got 3""", back(x, scale, block_size=3), odd)

    def test_7_swizzle(self) -> None:
        x = raw(64, 64, dtype=E4M3)
        self.check(ValueError, """dequantize_mx: swizzle_type 1 needs rank 2 or more, got 1""", back_fmt(raw(64, dtype=E4M3), raw(2), swizzle=1))
        self.check(ValueError, """dequantize_mx: swizzle_type 1 needs the last dim, got dim 0""", back_fmt(x, raw(2, 64), 0, swizzle=1))
        self.check(ValueError, """dequantize_mx: swizzle_type 1 needs block_size 32, got 16""", back_fmt(x, raw(64, 4), -1, 16, swizzle=1))

    def test_8_payload_dtype(self) -> None:
        self.check(TypeError, """dequantize_mx: self must be torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2 or torch.int8, got torch.uint8; raw bytes need elem_format (dequantize_mx.format)""", back(raw(4, 64, dtype=torch.uint8)))
        self.check(TypeError, """dequantize_mx: self must be torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2 or torch.int8, got torch.float32""", back(zeros(4, 64)))
        self.check(TypeError, """dequantize_mx: self must be torch.float8_e4m3fn for fp8_e4m3, got torch.uint8""", back_fmt(raw(4, 64, dtype=torch.uint8)))
        self.check(TypeError, """dequantize_mx: self must be torch.float8_e5m2 for fp8_e5m2, got torch.float8_e4m3fn""", back_fmt(elem_format="fp8_e5m2"))
        self.check(TypeError, """dequantize_mx: self must be torch.uint8 for fp6_e2m3, got torch.float8_e4m3fn""", back_fmt(elem_format="fp6_e2m3"))
        packed = back_fmt(raw(4, 32, dtype=torch.int8), elem_format="fp4_e2m1")
        self.check(TypeError, """dequantize_mx: self must be torch.uint8 or torch.float4_e2m1fn_x2 for fp4_e2m1, got torch.int8""", packed)

    def test_8_scale(self) -> None:
        """omlx#2159: scale bytes were multiplied as if they were numbers."""
        scale = raw(4, 2, dtype=torch.uint8)
        self.check(TypeError, """dequantize_mx: scale must be torch.float8_e8m0fnu, got torch.uint8; view it: scale.view(torch.float8_e8m0fnu)""", back(None, scale), back_fmt(None, scale))
        scale = zeros(4, 2)
        self.check(TypeError, """dequantize_mx: scale must be torch.float8_e8m0fnu, got torch.float32""", back(None, scale), back_fmt(None, scale))

    @KINDS_OF_THE_CPU
    @BETA
    def test_8_scale_layout(self) -> None:
        scale = torch.ones(4, 2).to_sparse()
        self.check_eager(TypeError, """dequantize_mx: scale must be a dense strided tensor, got layout torch.sparse_coo""", back(None, scale), back_fmt(None, scale))
        scale = nested_tensors(torch.ones(4, 2))[1]
        self.check_eager(TypeError, """dequantize_mx: scale must be a dense strided tensor, got a nested tensor""", back(None, scale), back_fmt(None, scale))

    @KINDS_OF_THE_CPU
    @BETA
    def test_8_nested_scale(self) -> None:
        scale = nested_tensors(torch.ones(4, 2))[0]
        self.check_eager(TypeError, """dequantize_mx: scale must be a dense strided tensor, got a nested tensor""", back(None, scale), back_fmt(None, scale))

    def test_9_shapes(self) -> None:
        scale = raw(4, 3)
        self.check(ValueError, """dequantize_mx: scale must have shape [4, 2] for values of shape [4, 64] and block_size 32, got [4, 3]""", back(None, scale), back_fmt(None, scale))
        scale = raw(8)
        self.check(ValueError, """dequantize_mx: scale must have shape [4, 2] for values of shape [4, 64] and block_size 32, got [8]""", back(None, scale), back_fmt(None, scale))
        scale = raw(1, 2)  # nothing is broadcast
        self.check(ValueError, """dequantize_mx: scale must have shape [4, 2] for values of shape [4, 64] and block_size 32, got [1, 2]""", back(None, scale), back_fmt(None, scale))
        packed = back_fmt(raw(4, 32, dtype=FP4), raw(4, 1), elem_format="fp4_e2m1")
        self.check(ValueError, """dequantize_mx: scale must have shape [4, 2] for values of shape [4, 64] and block_size 32, got [4, 1]""", back(raw(4, 32, dtype=FP4), raw(4, 1)), packed)
        self.check(ValueError, """dequantize_mx: scale must have shape [32, 16] for values of shape [4, 64] and block_size 32, got [4, 2]""", back_fmt(swizzle=1))
        self.check(ValueError, """dequantize_mx: scale must have shape [4, 2] for values of shape [4, 64] and block_size 32, got [32, 16]""", back_fmt(None, raw(32, 16)))

    def test_10_devices(self) -> None:
        here, text = raw(4, 2).device, "dequantize_mx: self and scale must be on one device, got "
        meta = raw(4, 2).to("meta")
        self.check_eager(RuntimeError, f"{text}{here} and meta", back(None, meta), back_fmt(None, meta))
        meta = raw(4, 64, dtype=E4M3).to("meta")
        self.check_eager(RuntimeError, f"{text}meta and {here}", back(meta), back_fmt(meta))

    @cpu_alone("one device is fake here, the other is the CPU")
    def test_10_fake_devices(self) -> None:
        with FakeTensorMode() as mode:
            x = mode.from_tensor(raw(4, 64, dtype=E4M3))
            scale = torch.empty(4, 2, dtype=E8M0, device="cuda:0")
            for call in (back(x, scale), back_fmt(x, scale)):
                with pytest.raises(RuntimeError, match="one device, got cpu and cuda:0"):
                    call.call()


# fmt: on
