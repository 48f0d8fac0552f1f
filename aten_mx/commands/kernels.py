"""``python -m aten_mx kernels``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aten_mx.backends import cpu
from aten_mx.backends.triton import impl as triton
from aten_mx.commands.files import FileError, check_writable, write_json
from aten_mx.commands.streams import print_fault
from aten_mx.commands.text import shown_name
from aten_mx.plugins import import_backend
from aten_mx.registry import KernelInfo, kernels

HEADINGS = KernelInfo("op", "dispatch key", "kernel", "compiled", "source")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``kernels`` to the command line."""
    parser = commands.add_parser("kernels", help="list which kernel answers for each op and key")
    parser.add_argument(
        "--import",
        dest="backend",
        metavar="MODULE[:FUNCTION]",
        help="first import your backend, and call the function that registers it",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print :func:`aten_mx.kernels` as a table.

    Returns:
        0, or 2 where a backend cannot be imported or the file cannot be written.
    """
    try:
        check_writable("--json", args.json)
        if args.backend:
            _import(args.backend)
        for device in triton.DEVICES.values():
            if device.is_available():
                device.init()  # the first use, at which the Triton kernels are registered
        rows = kernels()
        write_json(args.json, {"kernels": [row._asdict() for row in rows]})
    except (FileError, ImportError) as error:
        return print_fault("kernels", error)
    table = [[shown_name(cell) for cell in row] for row in (HEADINGS, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    for line in _hints({row.dispatch_key for row in rows}):
        print(line)
    return 0


def _import(backend: str) -> None:
    try:
        import_backend(backend)
    except Exception as error:  # a backend's code may raise anything
        raise ImportError(f"{backend}: {type(error).__name__}: {error}") from error


def _hints(keys: set[str]) -> list[str]:
    """What else could answer, and why it does not."""
    lines = []
    if "CPU" not in keys:
        lines.append(f"The emulated kernel answers on CPU; the native one: {cpu.BUILD_HINT}")
    absent = [key for key in triton.DEVICES if key not in keys]
    if absent:
        fault = triton.triton_fault()
        when = f"does not answer: {fault}" if fault else "answers from the device's first use on"
        lines.append(shown_name(f"The Triton kernel for {' and '.join(absent)} {when}"))
    return lines
