"""``python -m aten_mx build``."""

from __future__ import annotations

import argparse

from aten_mx.backends import cpu
from aten_mx.backends.build import BuildError
from aten_mx.commands.streams import print_fault
from aten_mx.commands.text import printable


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``build`` to the command line."""
    parser = commands.add_parser(
        "build", help="compile the native CPU kernel for the installed torch (half a minute)"
    )
    parser.add_argument(
        "--force", action="store_true", help="compile also where there is a build already"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build the native CPU kernel. What the compiler says goes to stdout, with the progress.

    Returns:
        0, or 2 where it cannot be built here.
    """
    try:
        cpu.build(_report, force=args.force)
    except BrokenPipeError:  # the reader of our output has gone; the build is not at fault
        raise
    except BuildError as error:
        lines = str(error).splitlines()
        if len(lines) > 1:
            for line in lines:
                _report(line)
        return print_fault("build", _summary(lines))
    except OSError as error:
        return print_fault("build", error)
    return 0


def _report(line: str) -> None:
    print(printable(line), flush=True)


def _summary(lines: list[str]) -> str:
    """One line is taken as it is; a compiler's output is reduced to its first error."""
    if len(lines) < 2:
        return "".join(lines)
    verdict = next((line for line in lines[1:] if "error" in line.lower()), lines[-1])
    return f"the compiler failed, its output is above: {verdict}"
