"""The wheel's ``torch`` with the patch's Python files in it, so that those can run.

A directory of links to the wheel's files, but for the ones that the patch changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# They set docstrings on functions, and override ops, that the wheel's extension module lacks.
_NEEDS_BINDINGS = (
    "torch/_torch_docs.py",
    "torch/_tensor_docs.py",
    "torch/_native/ops/__init__.py",
)


def make_overlay(site_packages: Path, tree: Path, changed: Iterable[str]) -> Path:
    """Lay out ``torch`` below ``tree/overlay``.

    Args:
        changed: the paths that the patch changed or added in ``tree``.

    Returns:
        The directory to put on ``PYTHONPATH``.
    """
    overlay = tree / "overlay"
    ours = [
        path
        for path in changed
        if path.startswith("torch/") and path.endswith(".py") and path not in _NEEDS_BINDINGS
    ]
    for path in ours:
        _link_siblings(site_packages, overlay, Path(path).parent)
        target = overlay / path
        target.unlink(missing_ok=True)
        target.symlink_to(tree / path)
    return overlay


def _link_siblings(site_packages: Path, overlay: Path, directory: Path) -> None:
    """Make ``directory`` a directory of links, and every one above it."""
    if directory == Path():
        overlay.mkdir(exist_ok=True)
        return
    _link_siblings(site_packages, overlay, directory.parent)
    target = overlay / directory
    if target.is_symlink():
        target.unlink()
    if target.is_dir():
        return
    target.mkdir()
    source = site_packages / directory
    for entry in source.iterdir() if source.is_dir() else ():  # the patch may bring a directory
        # Bytecode is the wheel's, and stands beside the file it was made of.
        if entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)
