"""What the documents say exists; their examples are doctests of their own."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

import aten_mx
from aten_mx import ScaleCalculationMode
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.schema import SCHEMAS

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.md", "docs/*.md", "rfc/*.md", "[!.]*/README.md", "examples/*/README.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
SEMANTICS = ROOT / "docs" / "semantics.md"
RFC = ROOT / "rfc" / "RFC-00xx-quantize-mx.md"
FOLDERS = "aten_mx|benchmarks|docs|examples|native_functions_patch|rfc|tests"


def anchors(path: Path) -> set[str]:
    """The headings of a document as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_tests_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    for name, test in re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)(?:::(\w+))?`", text):
        assert list(ROOT.glob(name.rstrip("/"))), f"{document.name}: {name}"
        if test:
            assert f"def {test}(" in (ROOT / name).read_text(), f"{document.name}: {name}::{test}"


def number(text: str) -> Fraction:
    """``2^-6``, ``127/64`` or ``7.5``."""
    if text.startswith("2^"):
        return Fraction(2) ** int(text[2:])
    return Fraction(text)


def table_rows(document: Path) -> dict[str, list[str]]:
    """The first table of the element formats, by format."""
    found: dict[str, list[str]] = {}
    for line in document.read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if cells[0] in FORMATS and cells[0] not in found:
            found[cells[0]] = cells[1:]
    return found


def dtype_name(fmt: ElementFormat) -> str:
    return "none" if fmt.dtype is None else str(fmt.dtype).removeprefix("torch.")


def test_the_table_of_formats_is_the_packages() -> None:
    assert list(table_rows(SEMANTICS)) == list(FORMATS)
    for name, cells in table_rows(SEMANTICS).items():
        fmt = FORMATS[name]
        dtype, payload, bits, fields, bias, emax, largest, normal, subnormal, nan = cells
        assert dtype == dtype_name(fmt)
        assert payload == ("same" if fmt.payload_dtype is fmt.dtype else "uint8")
        assert (int(bits), int(emax)) == (fmt.bits, fmt.emax)
        assert number(largest) == Fraction(fmt.max_normal)
        assert number(subnormal) == Fraction(fmt.min_subnormal)
        assert nan == (f"0x{fmt.nan_code:02X}" if fmt.nan_code else "none")
        if not fmt.twos_complement:
            assert fields == f"{fmt.exponent_bits}, {fmt.mantissa_bits}"
            assert int(bias) == fmt.bias
            assert number(normal) == Fraction(fmt.min_normal)


def test_the_proposals_table_of_formats_is_the_packages() -> None:
    assert list(table_rows(RFC)) == list(FORMATS)
    for name, cells in table_rows(RFC).items():
        fmt = FORMATS[name]
        dtype, payload, fields, emax, largest = cells
        assert dtype == dtype_name(fmt)
        assert payload.split(",")[0].strip("`") == (
            "same" if fmt.payload_dtype is fmt.dtype else "uint8"
        )
        assert int(emax) == fmt.emax
        assert number(largest) == Fraction(fmt.max_normal)
        if not fmt.twos_complement:
            assert fields == f"{fmt.exponent_bits}, {fmt.mantissa_bits}"


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.*?)\](.*)", text, re.MULTILINE)
    (unreleased, _), (latest, date), *_ = versions
    assert (unreleased, latest) == ("Unreleased", aten_mx.__version__)
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", date)


def test_the_table_of_modes_is_the_packages() -> None:
    rows = re.findall(r'\| (\d+) \| `"(\w+)"` \|', SEMANTICS.read_text())
    assert rows == [(str(mode.value), mode.name.lower()) for mode in ScaleCalculationMode]


def test_the_front_doors_name_every_format() -> None:
    for name in FORMATS:
        assert f'"{name}"' in (aten_mx.quantize_mx.__doc__ or "")


@pytest.mark.parametrize("document", [SEMANTICS, RFC], ids=lambda path: path.name)
def test_schemas_are_the_packages(document: Path) -> None:
    text = document.read_text()
    for schema in SCHEMAS:
        assert f"\n{schema}\n" in text
