"""What the patch consists of: three reviews, and for each its diffs and its new files.

New files live once. The C++ and the Triton kernels are the package's own; what only PyTorch core
needs stands below this folder, at core's paths.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PATCH_ROOT = Path(__file__).parent
PATCHES = PATCH_ROOT / "patches"
PACKAGE = PATCH_ROOT.parent / "aten_mx"
CSRC = PACKAGE / "csrc"
TRITON = PACKAGE / "backends" / "triton"


class Review(NamedTuple):
    """One review. It needs those before it, and none after it."""

    number: int
    title: str

    @property
    def name(self) -> str:
        """Such as ``1-operators``; also the folder of the diffs."""
        return f"{self.number}-{self.title}"


REVIEWS = (Review(1, "operators"), Review(2, "cpu"), Review(3, "triton"))
ALL = len(REVIEWS)


class NewFile(NamedTuple):
    """A file that the patch adds."""

    destination: str
    """Its path in PyTorch core."""
    source: Path
    """The file that goes there, byte for byte."""
    review: int


_QUANTIZED = "aten/src/ATen/native/quantized"
_TRITON_IN_CORE = "torch/_native/ops/quantize_mx"
# Sources beside native/cpu, which belongs to review 2 as a whole.
_CPU_ENTRY_POINTS = f"{_QUANTIZED}/QuantizeMX.cpp"
# None of their imports has to be rewritten: they import each other, and share a folder there too.
_TRITON_FILES = ("elements.py", "launch.py", "targets.py", "triton_kernels.py")


def new_files(last: int = ALL) -> list[NewFile]:
    """The files that reviews 1 to ``last`` add, by destination."""
    cpp = [path for path in (CSRC / "aten").rglob("*") if path.suffix in (".h", ".cpp")]
    own = [path for top in ("test", "torch") for path in (PATCH_ROOT / top).rglob("*.py")]
    files = {path.relative_to(CSRC).as_posix(): path for path in cpp}
    files |= {path.relative_to(PATCH_ROOT).as_posix(): path for path in own}
    files |= {f"{_TRITON_IN_CORE}/{name}": TRITON / name for name in _TRITON_FILES}
    files[f"{_TRITON_IN_CORE}/formats.py"] = PACKAGE / "formats.py"
    entries = [NewFile(name, source, _review_of(name)) for name, source in sorted(files.items())]
    return [entry for entry in entries if entry.review <= last]


def _review_of(destination: str) -> int:
    if destination.startswith(f"{_TRITON_IN_CORE}/"):
        return 3
    in_cpu = destination.startswith("aten/src/ATen/native/cpu/")
    return 2 if in_cpu or destination == _CPU_ENTRY_POINTS else 1


def diffs(last: int = ALL, *, checkout: bool = False) -> list[Path]:
    """The diffs of reviews 1 to ``last``, in their order.

    Args:
        checkout: add those of files that no wheel carries.
    """
    folders = [PATCHES / review.name for review in REVIEWS[:last]]
    found: list[Path] = []
    for folder in folders:
        found += sorted(folder.glob("*.patch"))
        if checkout:
            found += sorted((folder / "checkout").glob("*.patch"))
    return found
