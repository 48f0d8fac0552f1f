"""``python -m aten_mx conformance``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aten_mx.commands.files import FileError, check_writable, write_json
from aten_mx.commands.streams import print_fault, redraw
from aten_mx.overloads import OPS
from aten_mx.plugins import import_backend
from aten_mx.testing import CHECKS, Result, answering_kernels, check_kernel


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``conformance`` to the command line."""
    parser = commands.add_parser(
        "conformance",
        help="compare a device's kernels with the specification, byte for byte",
        description="Exit code 0: all cases hold; 1: mismatches; 2: the run itself failed.",
    )
    parser.add_argument("--device", required=True, help="as torch.device takes it: cpu, cuda, ...")
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS, help="default: both")
    parser.add_argument(
        "--checks", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="default: all"
    )
    parser.add_argument(
        "--import",
        dest="backend",
        metavar="MODULE[:FUNCTION]",
        help="first import your backend, and call the function that registers it",
    )
    parser.add_argument("--compile-backend", help="for torch.compile; default: by the device")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every case and its verdict")
    parser.set_defaults(run=run_conformance)


def run_conformance(args: argparse.Namespace) -> int:
    """Run the checks, print the report.

    Returns:
        0, 1 for mismatches, 2 where the run itself failed.
    """
    count = 0

    def progress(result: Result) -> None:
        nonlocal count
        count += 1
        if count % 100 == 0:
            redraw(f"{count} cases, at {result.name}")

    try:
        check_writable("--json", args.json)
        if args.backend:
            import_backend(args.backend)
        if all("CompositeImplicitAutograd" in k for k in answering_kernels(args.device).values()):
            # Then nothing of the device is tested. It is a failure where a backend was named.
            if args.backend:
                raise RuntimeError(f"{args.backend} has registered no kernel for {args.device}")
            print(
                f"The emulated kernel answers: this run tests no kernel of {args.device}.",
                file=sys.stderr,
            )
        report = check_kernel(
            args.device,
            args.ops,
            checks=args.checks,
            compile_backend=args.compile_backend,
            progress=progress,
        )
        write_json(args.json, report.as_dict())
    except FileError as error:
        return print_fault("conformance", error)
    except BrokenPipeError:  # the reader of our output has gone; the run is not at fault
        raise
    except Exception as error:
        return print_fault("conformance", f"{type(error).__name__}: {error}")
    redraw("")
    print(report)
    return 0 if report.passed else 1
