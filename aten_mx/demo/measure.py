"""Quantizes a model's weights in every format and scale mode, and measures what is lost."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aten_mx import ScaleCalculationMode
from aten_mx.commands.streams import can_redraw
from aten_mx.commands.text import shown_name
from aten_mx.demo.errors import DemoError
from aten_mx.demo.weights import BLOCK_SIZE, Model, count_pieces, pieces
from aten_mx.formats import FORMATS, ElementFormat

SCALE_BITS = 8
PROGRESS_DELAY = 2.0  # seconds before a progress bar shows


@dataclass
class Row:
    """What one format and scale mode does to a model's weights.

    Args:
        fmt: element format.
        mode: scale mode.
        elements: number of elements measured.
        signal: sum of v^2.
        noise: sum of (v - v')^2.
        worst_relative: largest |v - v'| / |v| over the elements at or above
            :func:`relative_floor` at their block's scale.
        worst_of_max: largest |v - v'| / (largest magnitude of its block).
        saturated: number of elements above the format's maximum at their block's scale.
    """

    fmt: ElementFormat
    mode: ScaleCalculationMode
    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    worst_relative: float = 0.0
    worst_of_max: float = 0.0
    saturated: int = 0

    @property
    def bits_per_value(self) -> float:
        """Bits of an element and its share of the scale."""
        return self.fmt.bits + SCALE_BITS / BLOCK_SIZE

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in dB; Inf without noise.

        -Inf where a value near float32's maximum is rounded up to 2^128, which is Inf.
        """
        if self.noise == 0.0:
            return math.inf
        if math.isinf(self.noise):
            return -math.inf
        return 10.0 * math.log10(self.signal / self.noise)

    @property
    def saturated_percent(self) -> float:
        """Share of saturated elements in percent."""
        return 100.0 * self.saturated / self.elements


@dataclass
class Results:
    """The table's rows and what was left out of them.

    Args:
        rows: one per format and scale mode, in the order of the package's tables.
        nonfinite_blocks: blocks with NaN or Inf, which have no error to measure.
    """

    rows: list[Row]
    nonfinite_blocks: int = 0


@dataclass
class Blocks:
    """Weights as float32 blocks, with the numbers that every format and mode needs."""

    values: torch.Tensor  # (blocks, 32)
    magnitudes: torch.Tensor
    maxima: torch.Tensor  # (blocks,)
    signal: float


def relative_floor(fmt: ElementFormat) -> float:
    """Smallest magnitude, at scale 1, whose relative error is counted.

    It is the smallest normal number: below it an element may round to zero, an error of 100 %
    in every format. In a fixed-point format all normal numbers are in the top binade, and CEIL
    scales put a block's maximum below it. So there the floor is half the scale.

    Args:
        fmt: element format.

    Returns:
        The magnitude.

    Example::

        >>> from aten_mx.formats import FORMATS
        >>> relative_floor(FORMATS["fp8_e4m3"]), relative_floor(FORMATS["int8"])
        (0.015625, 0.5)
    """
    return min(fmt.min_normal, 2.0 ** (fmt.emax - 1))


def measure(model: Model) -> Results:
    """Quantize and dequantize every weight in every format and scale mode.

    Args:
        model: what ``read_model`` found.

    Returns:
        One row per format and mode. A progress bar on stderr shows after two seconds.

    Raises:
        DemoError: the file can no longer be read, or all its blocks hold NaN or Inf.
    """
    rows = [Row(fmt, mode) for fmt in FORMATS.values() for mode in ScaleCalculationMode]
    results = Results(rows)
    with _progress(count_pieces(model) * len(rows)) as advance:
        for piece in pieces(model):
            blocks, nonfinite = _split(piece)
            results.nonfinite_blocks += nonfinite
            for row in rows:
                _add(row, blocks)
                advance(1)
    if rows[0].elements == 0:
        raise DemoError(f"{shown_name(model.path)}: every block of its weights holds NaN or Inf")
    return results


def round_trip(
    values: torch.Tensor, fmt: ElementFormat, mode: ScaleCalculationMode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize along the last dimension and dequantize to float32, through the operators.

    Args:
        values: float32, bfloat16 or float16.
        fmt: element format; one without a PyTorch dtype goes through ``.format``.
        mode: scale mode.

    Returns:
        The restored values, float32, and the scales, ``float8_e8m0fnu``.
    """
    ops = torch.ops.aten_mx
    if fmt.dtype is None:
        payload, scale = ops.quantize_mx.format(values, -1, BLOCK_SIZE, fmt.name, int(mode))
        args = (payload, scale, -1, BLOCK_SIZE, fmt.name, torch.float32)
        return ops.dequantize_mx.format(*args), scale
    payload, scale = ops.quantize_mx(values, -1, BLOCK_SIZE, fmt.dtype, int(mode))
    return ops.dequantize_mx(payload, scale, -1, BLOCK_SIZE, torch.float32), scale


def _split(piece: torch.Tensor) -> tuple[Blocks, int]:
    """Cut rows into the blocks that quantize_mx sees, and drop those with NaN or Inf."""
    values = piece.float().reshape(-1, BLOCK_SIZE)
    magnitudes = values.abs()
    maxima = magnitudes.amax(-1)
    finite = maxima.isfinite()
    nonfinite = int(finite.numel() - finite.sum())
    if nonfinite:
        values, magnitudes, maxima = values[finite], magnitudes[finite], maxima[finite]
    return Blocks(values, magnitudes, maxima, _sum_of_squares(values)), nonfinite


def _add(row: Row, blocks: Blocks) -> None:
    """Add one piece to a row. In float32, v - v' is exact because v' is near v."""
    if not blocks.values.numel():
        return
    restored, scale = round_trip(blocks.values, row.fmt, row.mode)
    error = restored.sub_(blocks.values).abs_()
    row.elements += error.numel()
    row.signal += blocks.signal
    row.noise += _sum_of_squares(error)
    step = scale.float()  # (blocks, 1), a power of two
    top = step * row.fmt.max_normal
    over = blocks.maxima > top[:, 0]
    row.saturated += int((blocks.magnitudes[over] > top[over]).sum())
    of_max = torch.where(blocks.maxima > 0, error.amax(-1) / blocks.maxima, 0.0)
    row.worst_of_max = max(row.worst_of_max, float(of_max.amax()))
    counted = blocks.magnitudes >= step * relative_floor(row.fmt)
    relative = torch.where(counted, error.div_(blocks.magnitudes), 0.0)
    row.worst_relative = max(row.worst_relative, float(relative.amax()))


def _sum_of_squares(values: torch.Tensor) -> float:
    wide = values.double().flatten()
    return float(torch.dot(wide, wide))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], Any]]:
    """A progress bar's advance function. With tqdm, a terminal shows the bar after two seconds."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda _: None
        return
    # tqdm's `disable=None` looks for a terminal, but accepts a dumb one.
    with tqdm(
        total=total,
        desc="quantizing",
        delay=PROGRESS_DELAY,
        mininterval=0.5,
        leave=False,
        disable=not can_redraw(sys.stderr),
    ) as bar:
        yield bar.update
