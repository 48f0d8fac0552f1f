"""The output streams of a command: a reader that has gone, a closed stream, a progress line."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from aten_mx.commands.text import one_line

FAULT = 2  # exit code where the arguments, the user's files or the machine are at fault
READER_GONE = 141  # 128 + SIGPIPE, as a shell reports other tools whose reader has gone


def print_fault(command: str, error: object) -> int:
    """Print one line on stderr.

    Args:
        command: its name.
        error: what is wrong.

    Returns:
        The exit code ``FAULT``.
    """
    print(f"aten_mx {command}: {one_line(error)}", file=sys.stderr)
    return FAULT


@contextmanager
def usable_streams() -> Iterator[None]:
    """Give stdout and stderr: both exist, and escape what their encoding cannot hold."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        out, err = (
            nowhere if stream is None or stream.closed else stream
            for stream in (sys.stdout, sys.stderr)
        )
        handlers = [(s, s.errors) for s in (out, err) if isinstance(s, io.TextIOWrapper)]
        try:
            for stream, _ in handlers:
                stream.reconfigure(errors="backslashreplace")
            with redirect_stdout(out), redirect_stderr(err):
                yield
        finally:
            for stream, errors in handlers:
                with suppress(OSError):  # what is still to be written has no reader
                    stream.reconfigure(errors=errors)


def guarded(run: Callable[[], int]) -> int:
    """Run a command, and report faults of its output streams.

    Args:
        run: the command, which returns its exit code.

    Returns:
        That code, or ``READER_GONE``, or ``FAULT`` where stdout cannot be written.
    """
    with usable_streams():
        try:
            code = run()
            sys.stdout.flush()  # report its faults here, not at the interpreter's exit
        except BrokenPipeError:
            code = READER_GONE
        except OSError as error:
            if not _is_fault_of_output(error):
                raise
            code = print_fault("output", f"cannot be written: {error.strerror}")
        finally:
            silence_broken_streams()
    return code


def _is_fault_of_output(error: OSError) -> bool:
    """A full disk or a closed file under stdout; commands report the faults of files themselves."""
    return error.errno in (errno.ENOSPC, errno.EBADF, errno.EIO) and error.filename is None


def silence_broken_streams() -> None:
    """Discard what cannot be written, so that the interpreter's exit does not fail either."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def can_redraw(stream: TextIO) -> bool:
    """Whether a line on ``stream`` can be drawn over: a terminal, and not a dumb one."""
    return os.environ.get("TERM", "") not in ("", "dumb") and stream.isatty()


def redraw(text: str) -> None:
    """Draw a line of progress over the one before; an empty text removes it."""
    if can_redraw(sys.stderr):
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{one_line(text)[:width]}", end="\033[K", file=sys.stderr, flush=True)
