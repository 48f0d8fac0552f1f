"""A library in the cache: written so that it can be verified, and verified before it is loaded.

A damaged library can end the process when it is loaded (SIGBUS). A library that another user wrote
runs that user's code. So a manifest beside the library has its size and digest. The library and its
folder must belong to the user or to root, and no one else may write them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class RefusedError(OSError):
    """The library is there, but it must not be loaded; the text says why."""


def manifest_path(library: Path) -> Path:
    """The manifest's place, beside the library."""
    return library.with_suffix(".json")


def verify(library: Path) -> None:
    """Raise unless ``library`` may be loaded.

    Raises:
        FileNotFoundError: there is no library.
        RefusedError: it is damaged, or someone else can write it.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(library.stat().st_mode):
        raise RefusedError(f"{library} is not a file")
    # Links are followed: the folder of the file is checked, and the folder of the link to it.
    real = library.resolve()
    for place in dict.fromkeys((library.parent, real.parent, real)):
        check_private(place)
    for folder in dict.fromkeys((*library.parent.parents, *real.parent.parents)):
        _check_not_replaceable(folder)
    try:
        manifest = json.loads(manifest_path(library).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RefusedError(f"{library} has no valid manifest beside it: {error}") from error
    if manifest != _describe(real):
        raise RefusedError(f"{library} is damaged: its size and digest are not the manifest's")


def check_private(place: Path) -> None:
    """Raise unless ``place`` belongs to the user or to root and no one else may write it.

    Raises:
        RefusedError: says what is wrong.
    """
    status = place.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise RefusedError(
            f"{place} belongs to another user (number {status.st_uid}), whose code would run; set "
            "ATEN_MX_CACHE_DIR to a folder of your own"
        )
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise RefusedError(
            f"{place} may be written by other users, whose code would run; "
            f"chmod go-w {place}, if all in it is yours"
        )


def make_private_folder(folder: Path) -> None:
    """Make ``folder`` with no write permission for others; an existing folder loses theirs.

    Raises:
        RefusedError: it belongs to someone else.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _withdraw_from_others(folder)
    check_private(folder)


def publish(built: Path, library: Path) -> None:
    """Move a finished library and its manifest to their place; what is there is replaced.

    Each is moved in one step. A process that reads between the two steps refuses the library.

    Args:
        built: the file, in the same file system.
        library: its place.
    """
    manifest = built.with_suffix(".json")
    manifest.write_text(json.dumps(_describe(built)), encoding="utf-8")
    for source, target in ((built, library), (manifest, manifest_path(library))):
        _withdraw_from_others(source)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        source.replace(target)


def _describe(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _check_not_replaceable(folder: Path) -> None:
    """Refuse a folder above in which other users could rename files that are not theirs."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise RefusedError(f"{folder} may be written by every user, who could replace the build")


def _withdraw_from_others(place: Path) -> None:
    status = place.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _WRITABLE_BY_OTHERS:
        place.chmod(stat.S_IMODE(status.st_mode) & ~_WRITABLE_BY_OTHERS)
