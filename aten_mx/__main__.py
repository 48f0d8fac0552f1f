"""The command line, ``python -m aten_mx COMMAND``.

A command is one function that adds its subparser and names, by ``set_defaults(run=...)``, what to
call with the parsed arguments; what that returns is the exit code. Adding one is a line below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from aten_mx import demo
from aten_mx.testing import command as testing

Commands = argparse._SubParsersAction  # argparse has no public name for it

COMMANDS: tuple[Callable[[Commands[argparse.ArgumentParser]], None], ...] = (
    demo.add_command,
    testing.add_kernels_command,
    testing.add_conformance_command,
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of every command.

    Returns:
        The parser; its result has ``run``, the chosen command, or ``None``.
    """
    parser = argparse.ArgumentParser(
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
        The exit code: 0, or 2 where the arguments or the user's files are at fault.

    Raises:
        SystemExit: from argparse, after ``--help`` (0) or for arguments it does not know (2).
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
