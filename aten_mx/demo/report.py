"""Prints the demo's results as a table."""

from __future__ import annotations

import math
from typing import Any

import torch

import aten_mx
from aten_mx.commands.text import shown_name
from aten_mx.demo.measure import SCALE_BITS, Results, Row, relative_floor
from aten_mx.demo.weights import BLOCK_SIZE, Model
from aten_mx.formats import FORMATS

HEADINGS = (
    "format",
    "scale mode",
    "bits/value",
    "SQNR dB",
    "worst rel %",
    "worst of max %",
    "saturated %",
)
NAMES_SHOWN = 3  # of each kind of skipped tensor


def cells(row: Row) -> tuple[str, ...]:
    """Write one row of the table.

    Args:
        row: a format and scale mode's result.

    Returns:
        One string per column, as ``HEADINGS``.
    """
    return (
        row.fmt.name,
        row.mode.name.lower(),
        f"{row.bits_per_value:.2f}",
        f"{row.sqnr_db:.2f}",
        f"{100 * row.worst_relative:.2f}",
        f"{100 * row.worst_of_max:.2f}",
        f"{row.saturated_percent:.3f}",
    )


def render(model: Model, results: Results) -> str:
    """Write the whole report: header, table, legend.

    Args:
        model: the weights' names, shapes and what was skipped.
        results: what ``measure`` found in them.

    Returns:
        The text, without a final newline.
    """
    return "\n".join([*_header(model, results), "", *_table(results.rows), "", *_legend()])


def as_dict(model: Model, results: Results) -> dict[str, Any]:
    """The report as plain data, with every name in full.

    Args:
        model: the weights' names, shapes and what was skipped.
        results: what ``measure`` found in them.

    Returns:
        What ``--json`` writes. JSON has no infinity: it is ``"inf"`` or ``"-inf"``.
    """
    return {
        "aten_mx": aten_mx.__version__,
        "torch": torch.__version__,
        "model": str(model.path),
        "weights": {name: list(shape) for name, shape in model.weights.items()},
        "skipped": model.skipped,
        "nonfinite_blocks": results.nonfinite_blocks,
        "rows": [
            {
                "format": row.fmt.name,
                "mode": row.mode.name.lower(),
                "bits_per_value": row.bits_per_value,
                "sqnr_db": _number(row.sqnr_db),
                "worst_relative_percent": _number(100 * row.worst_relative),
                "worst_of_max_percent": _number(100 * row.worst_of_max),
                "saturated_percent": row.saturated_percent,
            }
            for row in results.rows
        ],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _header(model: Model, results: Results) -> list[str]:
    lines = [
        f"{shown_name(model.path)}: {len(model.weights)} linear weights, "
        f"{model.elements:,} elements; blocks of {BLOCK_SIZE} along the last dimension "
        f"(aten_mx {aten_mx.__version__}, torch {torch.__version__})"
    ]
    for reason, names in model.skipped.items():
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        shown = ", ".join(map(shown_name, names[:NAMES_SHOWN]))
        lines.append(f"skipped {len(names)}: {reason} ({shown}{more})")
    if results.nonfinite_blocks:
        lines.append(f"skipped {results.nonfinite_blocks} blocks: NaN or Inf in them")
    return lines


def _table(rows: list[Row]) -> list[str]:
    """Names to the left, numbers to the right, an empty line between formats."""
    table = [HEADINGS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    previous = None
    for line, row in zip(table, [None, *rows], strict=True):
        if row is not None and row.fmt is not previous:
            lines.append("-" * (sum(widths) + 2 * (len(widths) - 1)) if previous is None else "")
            previous = row.fmt
        left = (f"{cell:<{width}}" for cell, width in zip(line[:2], widths[:2], strict=True))
        right = (f"{cell:>{width}}" for cell, width in zip(line[2:], widths[2:], strict=True))
        lines.append("  ".join((*left, *right)))
    return lines


def _legend() -> list[str]:
    fixed = [fmt for fmt in FORMATS.values() if relative_floor(fmt) < fmt.min_normal]
    aside = "".join(f"; {fmt.name}: >= {relative_floor(fmt):g} x scale" for fmt in fixed)
    return [
        f"bits/value: a code's bits + {SCALE_BITS}/{BLOCK_SIZE} for the scale. "
        "SQNR: 10 log10(sum v^2 / sum (v - v')^2) over all elements.",
        f"worst rel: max |v - v'| / |v| where |v| >= smallest normal x scale{aside} "
        "(a smaller one may round to 0).",
        "worst of max: max |v - v'| / largest |v| of the block. "
        "saturated: |v| > largest value x scale.",
    ]
