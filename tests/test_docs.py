"""What the documents say exists; their examples are doctests of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

import aten_mx
from aten_mx import ScaleCalculationMode
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.overloads import OVERLOADS

ROOT = Path(__file__).parents[1]
SPECIFICATION = ROOT / "docs" / "specification.md"
RFC = ROOT / "rfc" / "RFC-00xx-quantize-mx.md"
FOLDERS = ("aten_mx", "benchmarks", "docs", "examples", "native_functions_patch", "rfc", "tests")
TEXTS = {".md", ".py", ".cpp", ".h", ".toml", ".patch", ".ini", ".cfg"}


def tree() -> Iterator[Path]:
    """Every text of the project, by its suffix."""
    for pattern in ("*", *(f"{folder}/**/*" for folder in FOLDERS)):
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.suffix in TEXTS)
    yield ROOT / "Makefile"


DOCUMENTS = [path for path in tree() if path.suffix == ".md"]


@cache
def anchors(path: Path) -> frozenset[str]:
    """The headings of a document as GitHub makes anchors of them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return frozenset(word.strip().replace(" ", "-") for word in words)


def links(document: Path) -> list[tuple[str, str]]:
    """Text and target of each link to a file of the project."""
    text = document.read_text()
    found = re.findall(r"\[([^][]*)\]\(([^)\s]+)\)", text)
    found += re.findall(r"^\[([^]]*)\]: (\S+)", text, re.MULTILINE)
    return [(label, target) for label, target in found if not re.match(r"https?:", target)]


def numbers() -> set[str]:
    """The numbers of the specification: of its sections, and of the rows of its table of errors."""
    text = SPECIFICATION.read_text()
    found = re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", text, re.MULTILINE)
    return {*found, *re.findall(r"^\| (\d+\.\d+) \|", text, re.MULTILINE)}


def citations(text: str) -> list[str]:
    """The numbers that ``text`` cites: after the page's name and a comma, more of them by "and"."""
    plain = " ".join(re.sub(r"[`\]]|\n\s*(?://|#|>)+", " ", text).split()).replace(" ,", ",")
    one = r"\d+(?:\.\d+)?"
    found = re.findall(rf"specification\.md, ({one}(?:(?: and| to) {one})*)", plain)
    return [number for numbers in found for number in re.findall(one, numbers)]


def sources_of_cases(path: Path) -> list[str]:
    """The numbers in the second column of the named cases; other sources there are reports."""
    if not path.match("tests/cases*.py"):
        return []
    return re.findall(r'\w+\("[^"]+", "(\d+(?:\.\d+)?)"', path.read_text())


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in DOCUMENTS:
        for label, target in links(document):
            name, _, anchor = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            if not path.exists() or (anchor and anchor not in anchors(path)):
                wrong.append(f"{document.relative_to(ROOT)}: {target}")
            cited = citations(label)
            if cited and not anchor.startswith(cited[0].partition(".")[0]):
                wrong.append(f"{document.relative_to(ROOT)}: {label} leads to {target}")
    assert not wrong, "\n".join(wrong)


def test_files_and_tests_that_are_named_exist() -> None:
    wrong = []
    for document in DOCUMENTS:
        named = rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]*)(?:::(\w+))?`"
        for name, test in re.findall(named, document.read_text()):
            files = list(ROOT.glob(name.rstrip("/")))
            if not files or (test and f"def {test}(" not in files[0].read_text()):
                wrong.append(f"{document.relative_to(ROOT)}: {name} {test}")
    assert not wrong, "\n".join(wrong)


def test_citations_of_the_specification_name_a_number_of_it() -> None:
    known, wrong, count = numbers(), [], 0
    assert {*(str(n) for n in range(1, 11)), "3.1", "3.5", "6.1", "6.10", "6.16"} <= known
    for path in tree():
        cited = citations(path.read_text()) + sources_of_cases(path)
        count += len(cited)
        wrong += [f"{path.relative_to(ROOT)}: {n}" for n in cited if n not in known]
    assert not wrong, "\n".join(wrong)
    assert count > 50


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("# specification.md, 3.2", ["3.2"]),
        ("`specification.md`, 6.16.", ["6.16"]),
        ("[specification.md, 3.1 and 3.3](x)", ["3.1", "3.3"]),
        ("// see specification.md,\n    // 6.1 to 6.10; 7 of them", ["6.1", "6.10"]),
        ("specification.md#6-errors", []),
    ],
)
def test_citations_are_found(text: str, cited: list[str]) -> None:
    assert citations(text) == cited


def test_nothing_names_a_page_that_is_not_there() -> None:
    """Names of drafts, the page's name without a number, sections of anything but OCP's text."""
    forbidden = {
        "a draft": r"\bSPEC\b|\bfield[-]cases\b|\bsemantics\.md|\bhouse\.md",
        "a number without its comma": r"specification\.md`?,?\s*(?:section|§|(?<!, )\d)",
        "a section without its page": r"(?<!v1\.0,)(?<!v1\.0\*,) [Ss]ections? \d",
    }
    wrong = []
    for path in tree():
        text = " ".join(re.sub(r"\n\s*(?://|#|>)*", " ", path.read_text()).split())
        for what, pattern in forbidden.items():
            for match in re.finditer(pattern, text):
                around = text[max(match.start() - 40, 0) : match.end() + 20]
                wrong.append(f"{path.relative_to(ROOT)}: {what}: {around}")
    assert not wrong, "\n".join(wrong)


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
    assert list(table_rows(SPECIFICATION)) == list(FORMATS)
    for name, cells in table_rows(SPECIFICATION).items():
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
    rows = re.findall(r'\| (\d+) \| `"(\w+)"` \|', SPECIFICATION.read_text())
    assert rows == [(str(mode.value), mode.name.lower()) for mode in ScaleCalculationMode]


def test_the_front_doors_name_every_format() -> None:
    for name in FORMATS:
        assert f'"{name}"' in (aten_mx.quantize_mx.__doc__ or "")


@pytest.mark.parametrize("document", [SPECIFICATION, RFC], ids=lambda path: path.name)
def test_schemas_are_those_of_the_table_of_overloads(document: Path) -> None:
    """All of them, in their order, and no other."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    assert [row.schema for row in OVERLOADS] in [block.splitlines() for block in blocks]


def layers() -> dict[str, int]:
    """The package's modules and folders, by their row in CONTRIBUTING's first table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("\n## Layout\n")[2].partition("\n\n| folder |")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {
        name.rstrip("/").removesuffix(".py"): layer
        for layer, row in enumerate(rows)
        for name in re.findall(r"`([\w/.]+)`", row)
    }


def imported_modules(path: Path) -> set[str]:
    """Modules and folders of the package that a file imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "aten_mx":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aten_mx."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("aten_mx.")}
    return found


def test_the_layout_names_every_module_and_no_other() -> None:
    package = ROOT / "aten_mx"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.glob("*.*"))}
    assert set(layers()) == {*modules, *folders - {"__pycache__"}} | {"csrc"}


def test_modules_import_what_the_layout_allows() -> None:
    order, wrong, count = layers(), [], 0
    for path in sorted((ROOT / "aten_mx").rglob("*.py")):
        own = path.relative_to(ROOT / "aten_mx").with_suffix("").parts[0]
        for name in imported_modules(path) if own != "__init__" else ():
            count += 1
            if name in order and order[name] > order[own]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)
    assert count > 50
