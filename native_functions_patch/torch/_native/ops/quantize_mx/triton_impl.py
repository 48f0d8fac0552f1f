"""Triton overrides of quantize_mx and dequantize_mx.

Triton is imported by launch.py, at the first call. A call that
isn't valid, or not fused, is left to the composite, which has the errors.
"""

import functools

import torch

from ... import triton_utils as tu
from .formats import FORMAT_OF_DTYPE, FORMATS
from .targets import BLOCK_SIZES, Target, constants


_REAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SWIZZLE_32_4_4 = 1


def _is_fused(
    self: torch.Tensor, dim: int, block_size: int, name: str | None, swizzle_type: int
) -> bool:
    if (
        name not in FORMATS
        or block_size not in BLOCK_SIZES
        or self.layout is not torch.strided
        or not -self.dim() <= dim < self.dim()
        or self.numel() == 0
        or swizzle_type not in (0, _SWIZZLE_32_4_4)
    ):
        return False
    last = dim % self.dim() == self.dim() - 1
    return swizzle_type == 0 or (self.dim() > 1 and last and block_size == 32)


def _scale_shape(
    shape: list[int], dim: int, block_size: int, swizzle_type: int
) -> list[int]:
    scale_shape = [*shape[:dim], shape[dim] // block_size, *shape[dim + 1 :]]
    if swizzle_type:
        *leading, rows, columns = scale_shape
        return [*leading, -(-rows // 128) * 32, -(-columns // 4) * 16]
    return scale_shape


def _quantize_cond(
    self: torch.Tensor,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    scale_calculation_mode: int = 0,
) -> bool:
    fmt = FORMAT_OF_DTYPE.get(dtype)
    return fmt is not None and _quantize_format_cond(
        self, dim, block_size, fmt.name, scale_calculation_mode
    )


def _quantize_format_cond(
    self: torch.Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> bool:
    from .elements import SCALE_MODES

    return (
        self.dtype in _REAL_DTYPES
        and scale_calculation_mode in SCALE_MODES
        and _is_fused(self, dim, block_size, elem_format, swizzle_type)
        and self.shape[dim] % block_size == 0
    )


def _dequantize_cond(
    self: torch.Tensor,
    scale: torch.Tensor,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> bool:
    fmt = FORMAT_OF_DTYPE.get(self.dtype)
    return fmt is not None and _dequantize_format_cond(
        self, scale, dim, block_size, fmt.name, dtype
    )


def _dequantize_format_cond(
    self: torch.Tensor,
    scale: torch.Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> bool:
    if dtype not in _REAL_DTYPES or not _is_fused(
        self, dim, block_size, elem_format, swizzle_type
    ):
        return False
    fmt = FORMATS[elem_format]
    shape = _values_shape(self, dim, elem_format)
    dim %= self.dim()
    return (
        self.dtype in (fmt.dtype, fmt.payload_dtype)
        and scale.dtype is torch.float8_e8m0fnu
        and scale.layout is torch.strided
        and scale.device == self.device
        and shape[dim] % block_size == 0
        and list(scale.shape) == _scale_shape(shape, dim, block_size, swizzle_type)
    )


def _values_shape(payload: torch.Tensor, dim: int, name: str) -> list[int]:
    shape = list(payload.shape)
    shape[dim] *= FORMATS[name].codes_per_byte
    return shape


def _empty(
    shape: list[int], dim: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    moved = [*shape[:dim], *shape[dim + 1 :], shape[dim]]
    return torch.empty(moved, dtype=dtype, device=device).movedim(-1, dim)


@functools.cache
def _target(device: torch.device) -> Target:
    if device.type == "xpu":
        return Target("xpu", "", 32, True)
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        return Target("hip", name, 64, False)
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", 10 * major + minor, 32, False)


def _quantize_impl(
    self: torch.Tensor,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    scale_calculation_mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    output, scale = _quantize_format_impl(
        self, dim, block_size, FORMAT_OF_DTYPE[dtype].name, scale_calculation_mode
    )
    return output.view(dtype), scale


def _quantize_format_impl(
    self: torch.Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    from .launch import quantize_launch

    fmt = FORMATS[elem_format]
    dim %= self.dim()
    shape = list(self.shape)
    scale_shape = _scale_shape(shape, dim, block_size, swizzle_type)
    shape[dim] //= fmt.codes_per_byte
    output = _empty(shape, dim, fmt.payload_dtype, self.device)
    scale = _empty(scale_shape, dim, torch.float8_e8m0fnu, self.device)
    launch = quantize_launch(
        self.resolve_neg(),
        output.view(torch.uint8),
        scale.view(torch.uint8),
        dim,
        block_size,
        constants(fmt),
        scale_calculation_mode,
        swizzle_type == _SWIZZLE_32_4_4,
        _target(self.device),
    )
    with torch.accelerator.device_index(self.device.index):
        launch.run()
    return output, scale


def _dequantize_impl(
    self: torch.Tensor,
    scale: torch.Tensor,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    return _dequantize_format_impl(
        self, scale, dim, block_size, FORMAT_OF_DTYPE[self.dtype].name, dtype
    )


def _dequantize_format_impl(
    self: torch.Tensor,
    scale: torch.Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> torch.Tensor:
    from .launch import dequantize_launch

    dim %= self.dim()
    output = _empty(_values_shape(self, dim, elem_format), dim, dtype, self.device)
    launch = dequantize_launch(
        self if self.dtype is torch.int8 else self.view(torch.uint8),
        scale.view(torch.uint8),
        output,
        dim,
        block_size,
        constants(FORMATS[elem_format]),
        swizzle_type == _SWIZZLE_32_4_4,
        _target(self.device),
    )
    with torch.accelerator.device_index(self.device.index):
        launch.run()
    return output


_OVERRIDES = {
    "quantize_mx": (_quantize_cond, _quantize_impl),
    "quantize_mx.format": (_quantize_format_cond, _quantize_format_impl),
    "dequantize_mx": (_dequantize_cond, _dequantize_impl),
    "dequantize_mx.format": (_dequantize_format_cond, _dequantize_format_impl),
}


def register_to_dispatch() -> None:
    keys = ["CUDA", "XPU"] if torch.xpu._is_compiled() else ["CUDA"]
    for key in keys:
        for op_symbol, (cond, impl) in _OVERRIDES.items():
            tu.register_op_override("aten", op_symbol, key, cond=cond, impl=impl)
