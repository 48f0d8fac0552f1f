"""Names, paths and errors as one safe line of text.

A name in a model file, a path or an error of other code may hold any character. Printed as it is,
an escape sequence moves the terminal's cursor, a line break forges a row of a table, and a
bidirectional mark reverses what follows. So a command passes all such text through this module
before it prints or draws it.
"""

from __future__ import annotations

LONGEST_NAME = 200  # characters; a name in a file may have megabytes


def printable(text: object) -> str:
    r"""Escape characters that are not printable, as Python's string literals do.

    Args:
        text: anything; ``str`` of it is taken.

    Returns:
        The text on one line. Printable characters of every script, and spaces, stay.

    Example::

        >>> printable("a\x1b[31m\nb\u202e")
        'a\\x1b[31m\\nb\\u202e'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in str(text)
    )


def shown_name(name: object) -> str:
    """Escape a name or a path, and leave out the middle of a very long one.

    Args:
        name: of a tensor, a file or a kernel.

    Returns:
        At most ``LONGEST_NAME`` characters on one line.
    """
    text = str(name)
    if len(text) <= LONGEST_NAME:  # before the escapes, which are up to ten characters each
        text = printable(text)
    if len(text) <= LONGEST_NAME:
        return text
    half = (LONGEST_NAME - len("...")) // 2
    return printable(f"{printable(text[:half])[:half]}...{printable(text[-half:])[-half:]}")


def one_line(message: object) -> str:
    """Join the lines of a message, and escape it.

    Args:
        message: an error or its text.

    Returns:
        One line of text.
    """
    lines = (line.strip() for line in str(message).split("\n"))
    return printable(" ".join(line for line in lines if line))
