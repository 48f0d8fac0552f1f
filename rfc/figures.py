"""Draws the proposal's figures from ``benchmarks/results/*.json``.

``python rfc/figures.py`` writes ``rfc/figures/*.svg``; ``--suffix .png`` writes another format,
``--folder`` elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from render import DTYPES, MODES, load

from aten_mx.demo.plot import COLORS, MARKERS
from aten_mx.formats import FORMATS

FOLDER = Path(__file__).parent / "figures"
DODGE = 0.17  # between the scale modes of a format


def _mode_points(axes: Axes, data: dict[str, Any], value: str) -> None:
    """One marker a format and scale mode, the modes side by side."""
    for place, mode in enumerate(MODES):
        found = {row["format"]: row[value] for row in data["rows"] if row["mode"] == mode}
        axes.plot(
            [i + DODGE * (place - 1.5) for i in range(len(FORMATS))],
            [found[fmt] for fmt in FORMATS],
            MARKERS[place],
            color=COLORS[place],
            markeredgecolor="black",
            markeredgewidth=0.5,
            markersize=7,
            label=mode.upper(),
        )
    axes.set_xticks(range(len(FORMATS)), [fmt.replace("_", "\n") for fmt in FORMATS])
    axes.grid(visible=True, axis="y", linewidth=0.5, alpha=0.6)
    for edge in range(1, len(FORMATS)):
        axes.axvline(edge - 0.5, color="black", linewidth=0.3, alpha=0.4)


def accuracy() -> Figure:
    """SQNR on both data sets, and how much of a block's largest value an element may lose."""
    data = load("accuracy")["data"]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    middle.sharey(left)
    _mode_points(left, data["weights"], "sqnr_db")
    left.set(title="Weights (MiniLM)", ylabel="SQNR (dB), higher is better")
    _mode_points(middle, data["heavy-tailed"], "sqnr_db")
    middle.set(title="Heavy-tailed (Student's t, 3 d.o.f.)")
    _mode_points(right, data["weights"], "worst_of_max_percent")
    right.set(title="Largest error, weights", ylabel="% of its block's largest magnitude")
    right.set_ylim(bottom=0)
    right.legend(title="scale mode")
    return figure


def speed() -> Figure:
    """The native kernel's time beside what moving the bytes alone would take."""
    report = load("cpu")
    found = {row["what"]: row for row in report["limits"]}
    size = report["about"]["size"]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panels = figure.subplots(1, len(DTYPES), sharey=True)
    for axes, dtype in zip(panels, DTYPES, strict=True):
        rows = [found[f"{dtype} to {fmt}, rceil"] for fmt in FORMATS]
        places = range(len(rows))
        axes.barh(places, [row["ratio"] for row in rows], 0.6, color="#9ecae1", label="measured")
        bounds = [row["bound"] for row in rows]
        low, high = ([place + half for place in places] for half in (-0.4, 0.4))
        axes.vlines(bounds, low, high, color="black", linewidth=2.5, label="memory bound")
        axes.axvline(1, color=COLORS[3], linestyle="--", linewidth=1, label="copy_")
        axes.set_yticks(places, list(FORMATS))
        axes.set(
            title=f"from {dtype}", xlabel="time / time of copy_ of the same input", xlim=(0, None)
        )
        axes.grid(visible=True, axis="x", linewidth=0.5, alpha=0.6)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    threads = report["about"]["threads"]
    figure.suptitle(f"Native CPU kernel, RCEIL, ({size}, {size}), {threads} threads")
    return figure


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--suffix", default=".svg")
    args = parser.parse_args()
    # So that the same numbers give the same file.
    mpl.rcParams["svg.hashsalt"] = "aten_mx"
    metadata = {"Date": None} if args.suffix == ".svg" else None
    args.folder.mkdir(exist_ok=True)
    for draw in (accuracy, speed):
        draw().savefig(args.folder / f"{draw.__name__}{args.suffix}", dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()
