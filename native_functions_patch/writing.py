"""Writes the change to core as a tree to read: all its files, and a diff for each review."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from native_functions_patch.manifest import PATCHES, REVIEWS, new_files
from native_functions_patch.tree import apply_patches, changed_paths, lay_out

_README = """# `quantize_mx` and `dequantize_mx` in PyTorch core

Made from the wheel of torch {version}. The files are as they stand after the three reviews, at
core's paths. Apply the reviews in this order; each one is complete without those after it:

{reviews}
Files that no wheel carries are in the diffs alone: {checkout}.
"""


def write_change(site_packages: Path, out: Path, version: str) -> str:
    """Write the change into ``out``, which is empty or isn't there.

    Raises:
        PatchError: a diff doesn't apply to this release.
        OSError: ``out`` cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="quantize_mx_write_") as scratch:
        before, after = Path(scratch) / "a", Path(scratch) / "b"
        lay_out(site_packages, before)
        paths: list[str] = []
        for review in REVIEWS:
            after.mkdir()
            lay_out(site_packages, after)
            paths = apply_patches(after, review.number)
            text = _diff(Path(scratch)) + "".join(map(Path.read_text, _checkout_diffs(review.name)))
            (out / f"{review.name}.patch").write_text(text)
            lines.append(f"* `{review.name}.patch`, {text.count('diff --git ')} files\n")
            shutil.rmtree(before)
            after.rename(before)
        for path in paths:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(before / path, out / path)
    absent = {path for r in REVIEWS for p in _checkout_diffs(r.name) for path in changed_paths(p)}
    names = ", ".join(f"`{path}`" for path in sorted(absent))
    readme = _README.format(version=version, reviews="".join(lines), checkout=names)
    (out / "README.md").write_text(readme)
    return f"{len(paths)} files, {len(new_files())} of them new, and {len(REVIEWS)} diffs in {out}"


def _checkout_diffs(review: str) -> list[Path]:
    return sorted((PATCHES / review / "checkout").glob("*.patch"))


def _diff(scratch: Path) -> str:
    """What changed from ``scratch/a`` to ``scratch/b``."""
    command = ["git", "diff", "--no-index", "--no-prefix", "--no-color", "--no-renames", "a", "b"]
    result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):  # 1: there are differences
        raise OSError(f"git diff: {result.stderr.strip()}")
    return result.stdout
