"""``python -m aten_mx build`` and ``python -m aten_mx kernels``."""

from __future__ import annotations

import argparse
import sys

from aten_mx.backends import cpu
from aten_mx.backends.build import BuildError
from aten_mx.backends.triton import impl as triton
from aten_mx.plugins import import_backend
from aten_mx.registry import KernelInfo, kernels


def add_build_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``build`` to the command line."""
    parser = commands.add_parser(
        "build", help="compile the native CPU kernel for the installed torch (half a minute)"
    )
    parser.add_argument("--force", action="store_true", help="also where it has been built")
    parser.set_defaults(run=run_build)


def run_build(args: argparse.Namespace) -> int:
    """Build the native CPU kernel.

    Returns:
        0, or 2 where it cannot be built here.
    """
    try:
        cpu.build(lambda line: print(line, flush=True), force=args.force)
    except (BuildError, OSError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 2
    return 0


def add_kernels_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``kernels`` to the command line."""
    parser = commands.add_parser("kernels", help="list which kernel answers for each op and key")
    parser.add_argument(
        "--import",
        dest="backend",
        metavar="MODULE[:FUNCTION]",
        help="first import your backend, and call the function that registers it",
    )
    parser.set_defaults(run=run_kernels)


def run_kernels(args: argparse.Namespace) -> int:
    """Print :func:`aten_mx.kernels` as a table.

    Returns:
        0, or 2 where a backend to import cannot be.
    """
    if args.backend:
        try:
            import_backend(args.backend)
        except Exception as error:
            print(f"kernels: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
    for device in triton.DEVICES.values():
        if device.is_available():
            device.init()  # the first use, at which the Triton kernels are registered
    rows = [KernelInfo("op", "dispatch key", "kernel", "compiled"), *kernels()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).strip()
        )
    if not any(row.dispatch_key == "CPU" for row in rows):
        print(f"The emulated kernel answers on CPU; the native one: {cpu.BUILD_HINT}")
    absent = [key for key in triton.DEVICES if all(row.dispatch_key != key for row in rows)]
    if absent:
        fault = triton.triton_fault()
        when = f"does not answer: {fault}" if fault else "answers from the device's first use on"
        print(f"The Triton kernel for {' and '.join(absent)} {when}")
    return 0
