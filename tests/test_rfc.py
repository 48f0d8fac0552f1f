"""The proposal: its tables are what the renderer makes of the results, whole and dated."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from support import run_python

import aten_mx
from aten_mx.formats import FORMATS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "rfc"))
import figures  # noqa: E402
import render  # noqa: E402

TEXT = render.RFC.read_text()
ABOUT = r"^\d{4}-\d\d-\d\d, with torch \S+, aten_mx \S+"


def table(name: str) -> str:
    """What stands between a table's markers."""
    match = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end {name} -->", TEXT, re.DOTALL)
    assert match, f"no table {name}"
    return match[1]


def rows(name: str) -> list[list[str]]:
    """The cells of a table, but for the line under its header."""
    lines = [line for line in table(name).splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if not line.startswith("| ---")
    ]


def test_the_tables_are_what_the_results_say() -> None:
    assert render.render(TEXT) == TEXT, "run: python rfc/render.py"


@pytest.mark.parametrize("name", render.TABLES)
def test_every_table_has_its_place(name: str) -> None:
    assert table(name).strip()


def test_accuracy_has_every_format_and_mode_twice() -> None:
    found = rows("accuracy")
    assert [row[0] for row in found] == [
        name
        for data in ("weights", "heavy-tailed")
        for name in (data, *(f"`{f}`" for f in FORMATS))
    ]
    modes = [f"{mode}, {unit}" for unit in ("dB", "% of max") for mode in render.MODES]
    for row in (found[0], found[1 + len(FORMATS)]):
        assert row[1:-1] == modes
    assert len({len(row) for row in found}) == 1


def test_speed_has_every_format_and_dtype() -> None:
    assert [row[0] for row in rows("cpu")][1:] == [f"`{fmt}`" for fmt in FORMATS]
    assert {len(row) for row in rows("cpu")} == {1 + 4 * len(render.DTYPES) + 1}
    assert [row[0] for row in rows("peers")][1:] == [
        f"{dtype} to `{fmt}`" for dtype in render.DTYPES for fmt in FORMATS
    ]


@pytest.mark.parametrize("name", ["accuracy", "cpu", "peers", "dispatch"])
def test_date_versions_and_hardware_are_said(name: str) -> None:
    hardware = "" if name == "dispatch" else r".*, cpu \S+"
    assert re.search(ABOUT + hardware, table(name), re.MULTILINE)


def test_numbers_in_the_text_are_the_tables() -> None:
    """What the paragraph on RCEIL and FLOOR says, from the results."""
    data = render.load("accuracy")["data"]

    def sqnr(name: str, fmt: str, mode: str) -> float:
        found = (
            r["sqnr_db"] for r in data[name]["rows"] if (r["format"], r["mode"]) == (fmt, mode)
        )
        return next(found)

    def gain(name: str, fmt: str) -> float:
        return sqnr(name, fmt, "rceil") - sqnr(name, fmt, "floor")

    text = " ".join(TEXT.split())
    weights, tailed = gain("weights", "fp8_e4m3"), gain("heavy-tailed", "fp8_e4m3")
    assert f"{weights:.1f} dB on the weights and by {tailed:.1f} dB on the heavy-tailed" in text
    small = [gain(name, fmt) for name in data for fmt in ("fp8_e5m2", "fp6_e3m2")]
    assert f"better by {min(small):.1f} to {max(small):.1f} dB" in text
    loss = [-gain(name, "fp4_e2m1") for name in data]
    assert f"finer steps give it {min(loss):.1f} to {max(loss):.1f} dB more" in text
    for name in data:
        assert max(render.MODES, key=lambda mode: sqnr(name, "fp4_e2m1", mode)) == "even"
        for fmt in FORMATS:
            assert sqnr(name, fmt, "ceil") <= sqnr(name, fmt, "rceil")


def test_inlining_traces_as_many_nodes_as_the_text_says() -> None:
    class BothWays(torch.nn.Module):
        def forward(self, x: torch.Tensor, payload: torch.Tensor, scale: torch.Tensor) -> object:
            call = (-1, 32, "fp8_e4m3")
            return (
                torch.ops.aten_mx.quantize_mx.format(x, *call),
                torch.ops.aten_mx.dequantize_mx.format(payload, scale, *call, x.dtype),
            )

    x = torch.randn(4, 64)
    program = torch.export.export(BothWays(), (x, *aten_mx.quantize_mx(x)))
    table = aten_mx.decomposition_table()
    inlined = program.run_decompositions(table).graph.nodes
    nodes = sum(node.op == "call_function" for node in inlined)
    text = " ".join(TEXT.split())
    said = re.search(r"some (\d+) nodes are traced to quantize and some (\d+) to dequant", text)
    assert said
    assert sum(map(int, said.groups())) == pytest.approx(nodes, rel=0.1)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the numbers are 2.13's")
def test_precedents_in_core() -> None:
    """What the text says of native_functions.yaml, from the copy that the wheel carries."""
    path = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    entries = yaml.safe_load(path.read_text())
    composite = "CompositeImplicitAutograd"
    beside, core, core_and_composite = [], 0, 0
    for entry in entries:
        # Without a dispatch table, and not structured, the one kernel is the composite.
        structured = {"structured", "structured_delegate"} & set(entry)
        keys = ", ".join(entry.get("dispatch", () if structured else (composite,))).split(", ")
        if composite in keys and any(key in ("CPU", "CUDA", "MPS") for key in keys):
            beside.append(entry["func"].partition("(")[0])
        if "core" in entry.get("tags", ()):
            core += 1
            core_and_composite += composite in keys
    text = " ".join(TEXT.split())
    assert f"{len(beside)} of {len(entries):,} entries have such a composite" in text
    names = ", ".join(f"`{name}`" for name in sorted(beside))
    assert f"for ordinary tensors: {names}" in text
    assert core_and_composite == 10
    assert f"Ten of the {core} core operators of 2.13 have such a composite" in text


def test_broken_markers_are_refused() -> None:
    with pytest.raises(ValueError, match="no table 'none'; there are accuracy, cpu"):
        render.render("<!-- table none -->\n<!-- end none -->")
    with pytest.raises(ValueError, match="no end marker"):
        render.render("<!-- table cpu -->\n<!-- end peers -->")


def test_what_was_not_measured_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(render, "ROOT", tmp_path)
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    text = render.render("<!-- table cpu -->\n<!-- end cpu -->")
    assert "Not measured: there is no `cpu.json`." in text


def test_figures_are_drawn_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["figures.py", "--folder", str(tmp_path)])
    figures.main()
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in figures.FOLDER.iterdir())
    for name in drawn:
        assert f"(figures/{name})" in TEXT
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.slow
def test_dispatch_is_as_the_table_says(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    script = ROOT / "benchmarks" / "dispatch_comparison.py"
    code = (
        "import runpy, sys; script, path = sys.argv[1:]; sys.argv = [script, '--json', path]\n"
        "sys.path.insert(0, script.rpartition('/')[0])\n"
        "runpy.run_path(script, run_name='__main__')"
    )
    run_python(code, str(script), str(path))
    assert json.loads(path.read_text())["answers"] == render.load("dispatch")["answers"]
