"""Draws SQNR against bits per value."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from aten_mx.commands.files import check_writable, write_file
from aten_mx.commands.text import shown_name
from aten_mx.demo.errors import DemoError
from aten_mx.formats import FORMATS
from aten_mx.scaling import ScaleCalculationMode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from aten_mx.demo.measure import Row

SUFFIXES = (".png", ".pdf", ".svg")
MARKERS = "os^vDPX*<>"  # one per format, so that they differ in a grey print
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#000000")  # colour-blind safe
TITLE_WIDTH = 70  # characters that fit beside each other
DODGE = 0.16  # bits between neighbouring scale modes, which have the same bits per value


def check(path: Path) -> None:
    """Find out before the work starts whether the plot can be drawn and written.

    Args:
        path: where to write; the suffix chooses the file format. An existing file is left as is.

    Raises:
        DemoError: no matplotlib, or a suffix it does not write.
        FileError: the path cannot be written.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DemoError(
            f"--plot needs matplotlib: run `pip install matplotlib` ({error})"
        ) from error
    if path.suffix.lower() not in SUFFIXES:
        name = shown_name(path)
        raise DemoError(f"--plot {name}: the suffix must be one of {', '.join(SUFFIXES)}")
    check_writable("--plot", path)


def draw(rows: list[Row], title: str, path: Path) -> None:
    """Draw one marker per format and scale mode.

    Args:
        rows: the table's rows.
        title: name of the model.
        path: where to write.

    Raises:
        FileError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    formats, modes = list(FORMATS), list(ScaleCalculationMode)
    for row in rows:
        place = modes.index(row.mode)
        axes.plot(
            row.bits_per_value + DODGE * (place - (len(modes) - 1) / 2),
            row.sqnr_db,
            MARKERS[formats.index(row.fmt.name) % len(MARKERS)],
            color=COLORS[place % len(COLORS)],
            markeredgecolor="black",
            markeredgewidth=0.5,
            markersize=8,
        )
    # A name is not a formula, but matplotlib reads text between two `$` as one.
    text = f"MX quantization of the linear weights of {shown_name(title)}"
    axes.set_title(textwrap.fill(text, TITLE_WIDTH), parse_math=False)
    axes.set_xlabel("bits per value, scale included (scale modes side by side)")
    axes.set_ylabel("SQNR (dB)")
    ticks = sorted({row.bits_per_value for row in rows})
    axes.set_xticks(ticks, [f"{bits:.2f}" for bits in ticks])
    axes.grid(visible=True, axis="y", linewidth=0.5, alpha=0.5)
    _legends(figure, formats, modes)
    kind = path.suffix.lower().removeprefix(".")
    write_file("--plot", path, lambda place: figure.savefig(place, dpi=150, format=kind))


def _legends(figure: Figure, formats: list[str], modes: list[ScaleCalculationMode]) -> None:
    """One legend for the marker (format), one for the colour (scale mode), beside the axes."""
    from matplotlib.lines import Line2D

    shapes = [
        Line2D([], [], color="white", marker=marker, markeredgecolor="black", label=name)
        for name, marker in zip(formats, MARKERS, strict=False)
    ]
    colors = [
        Line2D([], [], color=color, marker="o", linestyle="", label=mode.name.lower())
        for mode, color in zip(modes, COLORS, strict=False)
    ]
    figure.legend(handles=shapes, title="format", loc="outside right upper")
    figure.legend(handles=colors, title="scale mode", loc="outside right lower")
