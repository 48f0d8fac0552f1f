"""From tensors to a launch: dimensions, tiles and grid.

It needs shapes and strides only, so a launch can be made and compiled ahead of time for meta
tensors. Outputs are given, as raw bytes; they are dense with the blocked dimension innermost.
Its code imports only its neighbours: the file is part of the patch to PyTorch core as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .targets import LARGE, TILES, Target, convert_ptx
from .triton_kernels import dequantize_kernel, quantize_kernel

SWIZZLE_ROWS, SWIZZLE_COLUMNS = 128, 4
_STRIDED_ELEMENTS = 64  # a thread's, where it holds whole blocks


class Launch(NamedTuple):
    """A kernel with its arguments; :meth:`run` starts it."""

    kernel: Any
    grid: tuple[int]
    arguments: dict[str, Any]
    num_warps: int

    @property
    def options(self) -> dict[str, Any]:
        """Triton's compile options. No fusion: each fused step is written out, and Triton 3.9 warns
        where the option is not set."""
        return {"num_warps": self.num_warps, "enable_fp_fusion": False}

    def run(self) -> None:
        """Start the kernel, on the current device."""
        self.kernel[self.grid](**self.arguments, **self.options)


class _Dimensions(NamedTuple):
    """The dimensions but the blocked one: rows, and the rest; strides of each tensor."""

    rows: int
    row_strides: tuple[int, ...]
    row_unit: int
    outer_sizes: tuple[int, ...]
    outer_strides: tuple[tuple[int, ...], ...]
    outer_units: tuple[int, ...]


def quantize_launch(
    x: Tensor,
    output: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    element: dict[str, int],
    scale_calculation_mode: int,
    swizzled: bool,
    target: Target,
) -> Launch:
    """A launch that quantizes ``x``.

    Args:
        x: float32, bfloat16 or float16, any shape of rank 1 or more and strides, not empty.
        output, scale: uint8, dense with ``dim`` innermost, as the op lays them out.
        dim: the blocked dimension, counted from the front.
        block_size: one of :data:`~targets.BLOCK_SIZES`.
        element: the format's constants, by the kernel's names.
        scale_calculation_mode: as the op takes it.
        swizzled: lay the scale out in tiles of 128 rows by 4 columns.
        target: what to compile for.
    """
    dims = _collapse(x.shape, dim, [x.stride()], swizzled, x.stride(dim) == 1)
    columns, (row_stride,) = x.shape[dim], dims.row_strides
    flat = _is_flat(dims, columns, swizzled, [(row_stride, x.stride(dim), columns)])
    strided = x.stride(dim) != 1
    tiling = _tiling(dims, columns, block_size, x.numel(), flat, strided, swizzled, target)
    convert = "" if target.backend != "cuda" else convert_ptx(element, int(target.arch))
    arguments = dict(
        x_ptr=_bits(x),
        output_ptr=output,
        scale_ptr=scale,
        row_stride=row_stride,
        column_stride=x.stride(dim),
        outer_strides=dims.outer_strides[0],
        MODE=scale_calculation_mode,
        CONVERT=convert,
        FLUSHES=target.flushes,
        **tiling.arguments,
        **{name: element[name] for name in _QUANTIZE_CONSTANTS},
    )
    return Launch(quantize_kernel, tiling.grid, arguments, tiling.num_warps)


def dequantize_launch(
    payload: Tensor,
    scale: Tensor,
    output: Tensor,
    dim: int,
    block_size: int,
    element: dict[str, int],
    swizzled: bool,
    target: Target,
) -> Launch:
    """A launch that dequantizes.

    Args:
        payload: uint8 or int8, of any strides.
        scale: uint8, of any strides.
        output: float32, bfloat16 or float16, dense with ``dim`` innermost.
        dim, block_size, element, swizzled, target: as for :func:`quantize_launch`.
    """
    if swizzled and not scale.is_contiguous():
        scale = scale.contiguous()  # a 32nd of the payload; its tiles' order is its meaning
    stride, scale_stride = payload.stride(dim), 0 if swizzled else scale.stride(dim)
    all_strides = [payload.stride(), payload.stride() if swizzled else scale.stride()]
    dims = _collapse(payload.shape, dim, all_strides, swizzled, stride == 1)
    size = payload.shape[dim]
    columns = size * element["CODES_PER_BYTE"]
    row_stride, scale_row_stride = dims.row_strides
    rows = [(row_stride, stride, size), (scale_row_stride, scale_stride, columns // block_size)]
    flat = _is_flat(dims, columns, swizzled, rows)
    tiling = _tiling(dims, columns, block_size, output.numel(), flat, stride != 1, swizzled, target)
    arguments = dict(
        payload_ptr=payload,
        scale_ptr=scale,
        output_ptr=_bits(output),
        payload_row_stride=row_stride,
        scale_row_stride=scale_row_stride,
        payload_column_stride=stride,
        scale_column_stride=scale_stride,
        outer_payload_strides=dims.outer_strides[0],
        outer_scale_strides=dims.outer_strides[1],
        FLUSHES=target.flushes,
        **tiling.arguments,
        **{name: element[name] for name in _DEQUANTIZE_CONSTANTS},
    )
    return Launch(dequantize_kernel, tiling.grid, arguments, tiling.num_warps)


_COMMON = (
    "MANTISSA",
    "EXPONENT_BITS",
    "BIAS",
    "MAX_CODE",
    "NAN_CODE",
    "SIGN_SHIFT",
    "CODES_PER_BYTE",
)
_QUANTIZE_CONSTANTS = (*_COMMON, "EMAX")
_DEQUANTIZE_CONSTANTS = (*_COMMON, "INF_CODE")


def _collapse(
    shape: Sequence[int],
    dim: int,
    strides: list[tuple[int, ...]],
    swizzled: bool,
    columns_contiguous: bool,
) -> _Dimensions:
    """Merge the dimensions but ``dim`` where all tensors' strides allow it, and choose the rows."""
    merged: list[tuple[int, tuple[int, ...], int]] = []  # size, strides, unit; innermost first
    unit = 1
    for i in reversed([i for i in range(len(shape)) if i != dim]):
        size, steps = shape[i], tuple(stride[i] for stride in strides)
        inner = merged[-1] if merged else None
        kept = swizzled and len(merged) == 1  # a swizzled scale's tiles know its rows
        if inner and not kept and steps == tuple(step * inner[0] for step in inner[1]):
            merged[-1] = (inner[0] * size, inner[1], inner[2])
        elif inner and not kept and inner[0] == 1:
            merged[-1] = (size, steps, unit)
        elif size > 1 or inner is None:
            merged.append((size, steps, unit))
        unit *= size
    merged = merged or [(1, (0,) * len(strides), 1)]
    if swizzled:
        chosen = 0
    elif columns_contiguous:
        chosen = max(range(len(merged)), key=lambda i: merged[i][0])
    else:  # read along memory
        chosen = max(range(len(merged)), key=lambda i: (merged[i][1][0] == 1, merged[i][0]))
    rows, row_strides, row_unit = merged.pop(chosen)
    merged.reverse()
    return _Dimensions(
        rows,
        row_strides,
        row_unit,
        tuple(size for size, _, _ in merged),
        tuple(tuple(steps[t] for _, steps, _ in merged) for t in range(len(strides))),
        tuple(unit for _, _, unit in merged),
    )


def _is_flat(
    dims: _Dimensions, columns: int, swizzled: bool, tensors: list[tuple[int, int, int]]
) -> bool:
    """Whether every tensor, (row stride, column stride, size), is contiguous, so that rows don't
    matter."""
    if swizzled or dims.outer_sizes:
        return False
    return all(
        step == 1 and (row_stride == size or dims.rows == 1) for row_stride, step, size in tensors
    )


class _Tiling(NamedTuple):
    grid: tuple[int]
    arguments: dict[str, Any]
    num_warps: int


def _tiling(
    dims: _Dimensions,
    columns: int,
    block_size: int,
    numel: int,
    flat: bool,
    strided: bool,
    swizzled: bool,
    target: Target,
) -> _Tiling:
    """What both kernels are told of dimensions and tiles."""
    tile = TILES[target.backend][0 if numel >= LARGE else 1]
    rows, row_unit = dims.rows, dims.row_unit
    if flat:
        rows, columns, row_unit = 1, rows * columns, 1
    padded_rows, padded_columns = rows, columns
    if swizzled:
        padded_rows = _round_up(rows, SWIZZLE_ROWS)
        padded_columns = _round_up(columns, SWIZZLE_COLUMNS * block_size)
    if strided:
        tile_columns, thread_elements = block_size, max(_STRIDED_ELEMENTS, block_size)
        tile_rows = max(1, tile.elements * 2 // block_size)
    else:
        tile_columns = tile.elements if flat else max(block_size, min(1024, tile.elements))
        thread_elements = tile.thread_elements
        tile_columns = min(tile_columns, max(block_size, _power_of_2_from(padded_columns)))
        tile_rows = tile.elements // tile_columns
    tile_rows = min(tile_rows, _power_of_2_from(padded_rows))
    row_tiles = _ceil_div(padded_rows, tile_rows)
    column_tiles = _ceil_div(padded_columns, tile_columns)
    threads = tile_rows * tile_columns // thread_elements
    return _Tiling(
        (row_tiles * column_tiles * prod(dims.outer_sizes),),
        dict(
            rows=rows,
            row_unit=row_unit,
            columns=columns,
            outer_sizes=dims.outer_sizes,
            outer_units=dims.outer_units,
            row_tiles=row_tiles,
            column_tiles=column_tiles,
            padded_rows=padded_rows,
            padded_columns=padded_columns,
            BLOCK_SIZE=block_size,
            SWIZZLED=swizzled,
            STRIDED=strided,
            ORDER="flat" if flat else "rows" if strided else "columns",
            ROWS=tile_rows,
            COLUMNS=tile_columns,
        ),
        max(1, threads // target.warp_size),
    )


def _bits(tensor: Tensor) -> Tensor:
    """The interpreter's conversion from bfloat16 flushes subnormals, so the kernels see bits."""
    return tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _power_of_2_from(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _round_up(number: int, multiple: int) -> int:
    return _ceil_div(number, multiple) * multiple
