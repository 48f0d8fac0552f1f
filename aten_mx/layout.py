"""Byte layouts: two codes per byte, and the 128x4 tiles of a swizzled scale."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 128
TILE_COLUMNS = 4
_ROW_GROUPS = 4  # a tile's 128 rows are 4 groups of 32; the groups of one row lie side by side
_GROUP_ROWS = TILE_ROWS // _ROW_GROUPS


class SwizzleType(IntEnum):
    """Layout of the scale tensor; the integers are those of ``torch.nn.functional.SwizzleType``."""

    NO_SWIZZLE = 0
    """One scale per block, in the order of the blocks."""

    SWIZZLE_32_4_4 = 1
    """Tiles of 128 rows by 4 columns, as NVIDIA's block-scaled matrix multiply reads them."""

    @classmethod
    def parse(cls, swizzle_type: Any) -> SwizzleType:
        """The member that ``swizzle_type`` names.

        Args:
            swizzle_type: a member, its int, or an enum member whose ``value`` is that int
                (PyTorch's ``SwizzleType``).

        Raises:
            ValueError: no layout of that number.

        Example::

            >>> from aten_mx import SwizzleType
            >>> SwizzleType.parse(torch.nn.functional.SwizzleType.SWIZZLE_32_4_4)
            <SwizzleType.SWIZZLE_32_4_4: 1>
        """
        value = getattr(swizzle_type, "value", swizzle_type)
        for member in _LAYOUTS:
            if value == member.value:
                return member
        raise ValueError(unknown_swizzle_message(value))


_LAYOUTS = tuple(SwizzleType)  # Dynamo of torch 2.11 can't iterate over the class itself


def unknown_swizzle_message(value: object) -> str:
    """Error text for a layout that does not exist."""
    known = " or ".join(f"{member.value} ({member.name})" for member in _LAYOUTS)
    return f"swizzle_type must be {known}, got {value}"


def ceil_div(numerator: Any, denominator: int) -> Any:
    """``numerator / denominator`` rounded up, for ints and SymInts."""
    return (numerator + denominator - 1) // denominator


def swizzled_shape(scale_shape: Sequence[Any]) -> list[Any]:
    """Shape of the swizzled form of a scale of ``scale_shape`` (rank 2 or more)."""
    *leading, rows, columns = scale_shape
    return [
        *leading,
        _GROUP_ROWS * ceil_div(rows, TILE_ROWS),
        _ROW_GROUPS * TILE_COLUMNS * ceil_div(columns, TILE_COLUMNS),
    ]


def swizzle(scale: Tensor) -> Tensor:
    """Lay the last two dimensions of ``scale`` (uint8) out in 128x4 tiles, padded with 0.

    Element (r, c) of a tile lands at ``(r % 32) * 16 + (r // 32) * 4 + c``; tiles are row-major.
    Source: cuBLAS, "1D block scaling factors layout"; ``torchao...to_blocked`` gives these bytes.
    """
    rows, columns = scale.shape[-2:]
    row_tiles, column_tiles = ceil_div(rows, TILE_ROWS), ceil_div(columns, TILE_COLUMNS)
    padding = (0, column_tiles * TILE_COLUMNS - columns, 0, row_tiles * TILE_ROWS - rows)
    tiles: Tensor = torch.nn.functional.pad(scale, padding)
    tiles = tiles.unflatten(-1, (column_tiles, TILE_COLUMNS))
    tiles = tiles.unflatten(-3, (row_tiles, _ROW_GROUPS, _GROUP_ROWS))
    # (row_tile, group, row, column_tile, column) -> (row_tile, column_tile, row, group, column)
    tiles = tiles.movedim((-5, -2, -3, -4, -1), (-5, -4, -3, -2, -1))
    # A copy even where no move was needed: an op must not return a view of its argument.
    return tiles.clone(memory_format=torch.contiguous_format).reshape(swizzled_shape(scale.shape))


def unswizzle(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """Undo :func:`swizzle`; the padding is dropped unread."""
    row_tiles, column_tiles = ceil_div(rows, TILE_ROWS), ceil_div(columns, TILE_COLUMNS)
    leading = swizzled.shape[:-2]
    tiles = swizzled.reshape(
        [*leading, row_tiles, column_tiles, _GROUP_ROWS, _ROW_GROUPS, TILE_COLUMNS]
    )
    tiles = tiles.movedim((-5, -4, -3, -2, -1), (-5, -2, -3, -4, -1))
    padded = tiles.reshape([*leading, row_tiles * TILE_ROWS, column_tiles * TILE_COLUMNS])
    # A copy: an op must not return a view of its argument.
    return padded[..., :rows, :columns].clone(memory_format=torch.contiguous_format)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes per byte along the last dimension, the even element in the low nibble."""
    return codes[..., 0::2] | torch.bitwise_left_shift(codes[..., 1::2], 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Undo :func:`pack_nibbles`."""
    return torch.stack((packed & 0xF, torch.bitwise_right_shift(packed, 4)), -1).flatten(-2)
