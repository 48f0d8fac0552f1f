"""The command line, ``python -m aten_mx COMMAND``.

A command is one function that adds its subparser. By ``set_defaults(run=...)`` it names a function,
which gets the parsed arguments and returns the exit code. A new command is one line below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from aten_mx import demo
from aten_mx.commands import build, kernels
from aten_mx.commands.streams import guarded
from aten_mx.commands.text import one_line
from aten_mx.testing import command as conformance

Commands = argparse._SubParsersAction  # argparse has no public name for it

COMMANDS: tuple[Callable[[Commands[argparse.ArgumentParser]], None], ...] = (
    demo.add_command,
    build.add_command,
    kernels.add_command,
    conformance.add_command,
)


class _Parser(argparse.ArgumentParser):
    """Its error texts escape the arguments, which may hold anything."""

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of every command.

    Returns:
        The parser; its result has ``run``, the chosen command, or ``None``.
    """
    parser: argparse.ArgumentParser = _Parser(
        prog="python -m aten_mx", description="Quantize tensors to OCP Microscaling (MX) formats."
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; ``None`` takes the process's own.

    Returns:
        The exit code: 0; 2 where the arguments, the user's files or the machine are at fault; 141
        where the reader of the output has gone; 1 where ``conformance`` found mismatches.

    Raises:
        SystemExit: from argparse, after ``--help`` (0) or for arguments it does not know (2).
    """
    return guarded(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
