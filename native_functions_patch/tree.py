"""A tree with the paths of a PyTorch checkout, laid out from a wheel, and the diffs applied to it.

A wheel holds every file that the code generators read and every Python file that the patch
changes, under other paths. Only those are copied.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from native_functions_patch.manifest import ALL, diffs, new_files

# Path in a checkout to path in a wheel; the first prefix that fits counts.
_WHEEL_PATHS = (
    ("aten/src/ATen/native/", "torchgen/packaged/ATen/native/"),
    ("aten/src/ATen/templates/", "torchgen/packaged/ATen/templates/"),
    ("tools/autograd/", "torchgen/packaged/autograd/"),
    (
        "torch/csrc/inductor/aoti_torch/generated/",
        "torch/include/torch/csrc/inductor/aoti_torch/generated/",
    ),
)
# What the generators read, beside the files that the patch changes.
_READ_BY_CODEGEN = (
    "aten/src/ATen/native/",
    "aten/src/ATen/templates/",
    "tools/autograd/",
    "torch/csrc/inductor/aoti_torch/generated/",
    "torchgen/",
)


class PatchError(Exception):
    """A diff doesn't apply, or a file that it changes isn't there."""


def patch_files(tree: Path, last: int = ALL, *, checkout: bool = False) -> list[Path]:
    """The diffs of reviews 1 to ``last`` that ``tree`` needs.

    A diff named ``NAME@RELEASE.patch`` is one of several for the same file, whose surroundings
    differ from release to release; the first that applies is meant.
    """
    chosen: dict[Path, Path] = {}
    for patch in diffs(last, checkout=checkout):
        name, _, release = patch.stem.partition("@")
        place = patch.with_name(name)
        if place not in chosen or (release and not _applies(tree, chosen[place])):
            chosen[place] = patch
    return list(chosen.values())


def changed_paths(patch: Path) -> list[str]:
    """Paths in a checkout that a diff changes."""
    return re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)


def lay_out(site_packages: Path, tree: Path) -> int:
    """Copy what the codegen and the diffs need from a wheel to a checkout's paths.

    Returns:
        The number of files.

    Raises:
        PatchError: the wheel lacks one of them.
    """
    for prefix in _READ_BY_CODEGEN:
        source = site_packages / _in_wheel(prefix)
        if not source.is_dir():
            raise PatchError(f"{source} is missing; is this the directory that holds torch?")
        ignored = shutil.ignore_patterns("__pycache__", "packaged")
        shutil.copytree(source, tree / prefix, ignore=ignored, dirs_exist_ok=True)
    for patch in diffs():
        for path in changed_paths(patch):
            source, target = site_packages / _in_wheel(path), tree / path
            if not source.is_file():
                raise PatchError(f"{patch.name} changes {path}, and {source} is missing")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return sum(1 for path in tree.rglob("*") if path.is_file())


def _in_wheel(path: str) -> str:
    for prefix, packaged in _WHEEL_PATHS:
        if path.startswith(prefix):
            return packaged + path.removeprefix(prefix)
    return path


def apply_patches(tree: Path, last: int = ALL, *, checkout: bool = False) -> list[str]:
    """Apply reviews 1 to ``last``, all or none: the diffs, then the new files.

    Returns:
        The paths that were changed or added.

    Raises:
        PatchError: a diff doesn't apply, or a file to be added exists with another content.
    """
    patches = patch_files(tree, last, checkout=checkout)
    added = new_files(last)
    for file in added:
        target = tree / file.destination
        if target.is_file() and target.read_bytes() != file.source.read_bytes():
            raise PatchError(f"{file.destination} exists already, with another content")
    _git_apply(tree, patches, "--check")
    _git_apply(tree, patches)
    for file in added:
        target = tree / file.destination
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
    changed = [name for patch in patches for name in changed_paths(patch)]
    return list(dict.fromkeys([*changed, *(file.destination for file in added)]))


def _applies(tree: Path, patch: Path) -> bool:
    return _git(tree, "apply", "--check", str(patch)).returncode == 0


def _git_apply(tree: Path, patches: list[Path], *options: str) -> None:
    # One input: of several, git would hold each against the files as they are on the disk, and two
    # reviews change the same file.
    text = "".join(patch.read_text() for patch in patches)
    result = _git(tree, "apply", *options, "-", text=text)
    if result.returncode:
        raise PatchError(f"git apply {' '.join(options)}: {result.stderr.strip()}")


def _git(tree: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    # --git-dir: inside another repository git would resolve the paths from that one's root.
    command = ["git", f"--git-dir={tree / '.no-repository'}", *arguments]
    return subprocess.run(
        command, cwd=tree, input=text, capture_output=True, text=True, check=False
    )
