"""Files that a command writes whole or not at all. Bad paths are refused before the work starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aten_mx.commands.text import shown_name


class FileError(Exception):
    """A file cannot be written; the text is the one line that the user sees."""


def check_writable(option: str, path: Path | None) -> None:
    """Find out whether a file could be written. It is left as it is.

    Args:
        option: the option that named the file, such as ``--json``.
        path: the file; ``None`` is no file.

    Raises:
        FileError: it cannot be written.
    """
    if path is None:
        return
    try:
        if _is_special(path):
            with path.open("ab"):
                return
        scratch = _scratch(path)
        with scratch.open("xb"):
            pass
        scratch.unlink()
        if path.exists():
            with path.open("ab"):
                pass
    except (OSError, ValueError) as error:
        raise _fault(option, path, error) from error


def write_file(option: str, path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there, so that no one sees a part of it.

    Args:
        option: the option that named the file.
        path: the file. A pipe or a device is written to directly.
        write: called with the path to write to.

    Raises:
        FileError: it cannot be written; what was there before stays.
    """
    try:
        if _is_special(path):
            write(path)
            return
        scratch = _scratch(path)
        try:
            write(scratch)
            scratch.replace(path.resolve())
        finally:
            scratch.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise _fault(option, path, error) from error


def write_json(path: Path | None, value: Any) -> None:
    """Write what ``--json`` asked for. Names are escaped as JSON does, lone surrogates too.

    Args:
        path: the file; ``None`` writes nothing.
        value: plain data without NaN and Inf, which JSON does not have.

    Raises:
        FileError: the file cannot be written.
    """
    if path is None:
        return
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_file("--json", path, lambda place: _write_text(place, text))


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)


def _is_special(path: Path) -> bool:
    """A pipe, a terminal or a device: there is nothing to move into its place."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _scratch(path: Path) -> Path:
    """A new name in the folder of the file itself, which a link may have elsewhere."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    target = path.resolve()
    return target.with_name(f".aten_mx-{os.getpid()}{target.suffix[:8]}")


def _fault(option: str, path: Path, error: Exception) -> FileError:
    why = getattr(error, "strerror", None) or str(error)
    return FileError(f"{option} {shown_name(path)} cannot be written: {why}")
