"""What a valid call means, and its outputs before they exist: shape, strides and dtype.

The rules that make a call valid are in :mod:`aten_mx.validation`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aten_mx.formats import FORMAT_OF_DTYPE, FORMATS, ElementFormat
from aten_mx.layout import swizzled_shape
from aten_mx.scaling import ScaleCalculationMode


class TensorSpec(NamedTuple):
    """An output before it exists: dense, ``dim`` innermost, the other dimensions in their order."""

    shape: list[int]
    dim: int
    dtype: torch.dtype

    def empty(self, device: torch.device | str) -> Tensor:
        """An uninitialised tensor of this shape, layout and dtype."""
        moved = [*self.shape[: self.dim], *self.shape[self.dim + 1 :], self.shape[self.dim]]
        # As bytes: torch.use_deterministic_algorithms(True) fills a new tensor, and PyTorch (2.13)
        # cannot fill float4_e2m1fn_x2.
        storage = torch.uint8 if self.dtype.itemsize == 1 else self.dtype
        empty = torch.empty(moved, dtype=storage, device=device).view(self.dtype)
        return empty.movedim(-1, self.dim)

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides of the output."""
        return self.empty("meta").stride()


class QuantizeCall(NamedTuple):
    """A valid ``quantize_mx`` call, whichever overload it came by."""

    fmt: ElementFormat
    shape: list[int]
    """Shape of the values."""
    dim: int
    """Counted from the front."""
    block_size: int
    scale_calculation_mode: int
    swizzle_type: int
    payload_dtype: torch.dtype

    @property
    def mode(self) -> ScaleCalculationMode:
        """The scale mode."""
        return ScaleCalculationMode(self.scale_calculation_mode)

    @property
    def output(self) -> TensorSpec:
        """The payload."""
        size = self.shape[self.dim] // self.fmt.codes_per_byte
        return TensorSpec(with_size(self.shape, self.dim, size), self.dim, self.payload_dtype)

    @property
    def scale(self) -> TensorSpec:
        """The scale."""
        shape = scale_shape(self.shape, self.dim, self.block_size, self.swizzle_type)
        return TensorSpec(shape, self.dim, torch.float8_e8m0fnu)

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """The results, in their order."""
        return {"output": self.output, "scale": self.scale}

    @property
    def arguments(self) -> tuple[int, int, str, int]:
        """What a kernel is given after the tensors."""
        return self.dim, self.block_size, self.fmt.name, self.scale_calculation_mode

    @property
    def keywords(self) -> dict[str, int]:
        """What a kernel is given by name."""
        return {"swizzle_type": self.swizzle_type}

    def typed(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Outputs of the ``.format`` overload in the dtypes of the overload that was called."""
        if self.payload_dtype is self.fmt.payload_dtype:
            return outputs
        return outputs[0].view(self.payload_dtype), *outputs[1:]


class DequantizeCall(NamedTuple):
    """A valid ``dequantize_mx`` call, whichever overload it came by."""

    fmt: ElementFormat
    shape: list[int]
    """Shape of the values: twice the payload's size at ``dim`` for FP4."""
    dim: int
    """Counted from the front."""
    block_size: int
    swizzle_type: int
    dtype: torch.dtype

    @property
    def output(self) -> TensorSpec:
        """The values."""
        return TensorSpec(self.shape, self.dim, self.dtype)

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """The result."""
        return {"output": self.output}

    @property
    def arguments(self) -> tuple[int, int, str, torch.dtype]:
        """What a kernel is given after the tensors."""
        return self.dim, self.block_size, self.fmt.name, self.dtype

    @property
    def keywords(self) -> dict[str, int]:
        """What a kernel is given by name."""
        return {"swizzle_type": self.swizzle_type}

    def typed(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Outputs of the ``.format`` overload, whose dtype is that of the other one too."""
        return outputs


Call = QuantizeCall | DequantizeCall
"""Either of them."""


def quantize_call(
    self: Tensor,
    dim: int,
    block_size: int,
    element: torch.dtype | str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> QuantizeCall:
    """The call with these arguments, which :func:`check_quantize` has accepted."""
    if isinstance(element, str):
        fmt = FORMATS[element]
        payload_dtype = fmt.payload_dtype
    else:
        fmt, payload_dtype = FORMAT_OF_DTYPE[element], element
    shape = list(self.shape)
    dim %= len(shape)
    mode = scale_calculation_mode
    return QuantizeCall(fmt, shape, dim, block_size, mode, swizzle_type, payload_dtype)


def dequantize_call(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str | None,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> DequantizeCall:
    """The call with these arguments, which :func:`check_dequantize` has accepted."""
    fmt = FORMAT_OF_DTYPE[self.dtype] if elem_format is None else FORMATS[elem_format]
    shape = list(self.shape)
    shape[dim] *= fmt.codes_per_byte
    return DequantizeCall(fmt, shape, dim % len(shape), block_size, swizzle_type, dtype)


def scale_shape(shape: list[int], dim: int, block_size: int, swizzle_type: int) -> list[int]:
    """Shape of the scale of values of ``shape``."""
    blocks = with_size(shape, dim, shape[dim] // block_size)
    return swizzled_shape(blocks) if swizzle_type else blocks


def with_size(shape: list[int], dim: int, size: int) -> list[int]:
    """``shape`` with another size at ``dim``."""
    return [*shape[:dim], size, *shape[dim + 1 :]]
