"""Writes the measured tables into the proposal, between its markers.

    python rfc/render.py            # from benchmarks/results/*.json
    python rfc/render.py --check    # exit code 1 where the file isn't what it would write

A table ``NAME`` stands between ``<!-- table NAME -->`` and ``<!-- end NAME -->``. The same results
give the same text; the numbers themselves come from the scripts in ``benchmarks/``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aten_mx.formats import FORMATS
from aten_mx.scaling import ScaleCalculationMode

ROOT = Path(__file__).parents[1]
RFC = ROOT / "rfc" / "RFC-00xx-quantize-mx.md"
RESULTS = ROOT / "benchmarks" / "results"
MODES = [mode.name.lower() for mode in ScaleCalculationMode]
DTYPES = ("float32", "bfloat16")
# As bench_cpu.py names them.
PEERS = {
    "native": "native",
    "emulated": "emulated",
    "em. compiled": "emulated, compiled",
    "TorchAO": "TorchAO",
    "AO compiled": "TorchAO, compiled",
    "MLX": "MLX",
    "ml_dtypes": "ml_dtypes, elements only",
}
GPUS = ("sm_90", "sm_100", "gfx950")  # those codegen.py has the rates of

Report = dict[str, Any]


def path_of(name: str) -> Path:
    """Where a benchmark writes its results."""
    return RESULTS / f"{name}.json"


def load(name: str) -> Report:
    """The results of one benchmark."""
    report: Report = json.loads(path_of(name).read_text())
    return report


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]], rule: str = "--:") -> str:
    """A table; ``rule`` aligns all columns but the first, by default as numbers."""
    header = list(header)
    lines = [header, ["---", *[rule] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def measured_with(about: dict[str, Any]) -> str:
    """The line under a table: date, versions, hardware."""
    words = [f"{name} {value}" for name, value in about.items() if name != "date"]
    when = f"{about['date']}, with " if "date" in about else "With "
    return f"{when}{', '.join(words)}."


def accuracy(report: Report) -> str:
    """SQNR and the largest error, by format and scale mode."""
    parts = []
    for name, data in report["data"].items():
        found = {(row["format"], row["mode"]): row for row in data["rows"]}
        rows = [
            (
                f"`{fmt}`",
                *(f"{found[fmt, mode]['sqnr_db']:.2f}" for mode in MODES),
                *(f"{found[fmt, mode]['worst_of_max_percent']:.1f}" for mode in MODES),
                f"{found[fmt, 'floor']['saturated_percent']:.2f}",
            )
            for fmt in FORMATS
        ]
        header = (
            name,
            *(f"{mode}, dB" for mode in MODES),
            *(f"{mode}, % of max" for mode in MODES),
            "saturated by floor, %",
        )
        parts.append(f"{name.capitalize()}: {data['what']}.\n\n{markdown(header, rows)}")
    return "\n\n".join([*parts, measured_with(report["about"])])


def cpu(report: Report) -> str:
    """The native kernel in times of a copy, beside what memory alone would take."""
    found = {row["what"]: row for row in report["limits"]}

    def ratio(what: str) -> str:
        return f"{found[what]['ratio']:.2f}"

    rows = []
    for fmt in FORMATS:
        cells = [f"`{fmt}`"]
        for dtype in DTYPES:
            call = f"{dtype} to {fmt}, rceil"
            along_first = found[call]["ratio"] * found[f"{call}, dim=0 / dim=-1"]["ratio"]
            bound = f"{found[call]['bound']:.2f}"
            cells += [bound, ratio(f"{dtype} to {fmt}, floor"), ratio(call), f"{along_first:.2f}"]
        rows.append([*cells, ratio(f"{fmt} to float32 / clone()")])
    columns = ("bound", "floor", "rceil", "rceil, dim=0")
    header = ["to or from"]
    header += [f"{dtype}: {column}" for dtype in DTYPES for column in columns]
    small = found["(1, 4096) float32 to fp8_e4m3, us"]["ratio"]
    return (
        f"{markdown([*header, 'back to float32'], rows)}\n\n"
        f"A (1, 4096) float32 call to `fp8_e4m3` takes {small:.1f} us.\n\n"
        f"{measured_with(report['about'])}"
    )


def peers(report: Report) -> str:
    """Everybody in times of a copy of the same input; a dash where one has no such call."""
    size = report["about"]["size"]
    threads = report["about"]["threads"]
    rows = [
        (
            f"{row['dtype']} to `{row['format']}`",
            *(f"{row['ratio'][name]:.2f}" if name in row["ratio"] else "-" for name in PEERS),
        )
        for row in report["peers"]
        if row["shape"] == [size, size] and row["threads"] == threads
    ]
    return f"{markdown(['', *PEERS.values()], rows)}\n\n{measured_with(report['about'])}"


def codegen(report: Report) -> str:
    """Instructions an element, and headroom, of the Triton kernels: bfloat16, the last dim."""
    found = {
        (row["op"], row["elem_format"], row["target"]): row
        for row in report["rows"]
        if row["input_dtype"] == "bfloat16"
        and row["dim"] == -1
        and row["mode"] in (None, ScaleCalculationMode.RCEIL)
    }
    rows = []
    for op in ("quantize_mx", "dequantize_mx"):
        for fmt in FORMATS:
            cells = [found[op, fmt, gpu] for gpu in GPUS]
            numbers = (f"{c['instructions_per_element']:.1f} ({c['headroom']:.1f})" for c in cells)
            rows.append((f"{op}, `{fmt}`", *numbers))
    about = {name: value for name, value in report.items() if name != "rows"}
    return f"{markdown(['', *GPUS], rows)}\n\n{measured_with(about)}"


def dispatch(report: Report) -> str:
    """What PyTorch does with either dispatch key."""
    answers = report["answers"]
    rows = [
        (question, *(answers[key][question] for key in answers))
        for question in next(iter(answers.values()))
    ]
    return f"{markdown(['', *answers], rows, '---')}\n\n{measured_with(report['about'])}"


# Each table with the file of its results.
TABLES: dict[str, tuple[str, Callable[[Report], str]]] = {
    "accuracy": ("accuracy", accuracy),
    "cpu": ("cpu", cpu),
    "peers": ("cpu", peers),
    "codegen": ("codegen", codegen),
    "dispatch": ("dispatch", dispatch),
}


def render(text: str) -> str:
    """``text`` with every table that it has markers for written anew.

    Raises:
        ValueError: markers of a table that doesn't exist, or a table without its end.
    """

    def table(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise ValueError(f"no table {name!r}; there are {', '.join(TABLES)}")
        results, write = TABLES[name]
        path = path_of(results)
        missing = f"Not measured: there is no `{path.relative_to(ROOT)}`."
        body = write(load(results)) if path.exists() else missing
        return f"<!-- table {name} -->\n\n{body}\n\n<!-- end {name} -->"

    starts, ends = (re.findall(rf"<!-- {word} (\w+) -->", text) for word in ("table", "end"))
    if starts != ends:
        raise ValueError(f"a table has no end marker of its name: {starts}, {ends}")
    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end \1 -->", table, text, flags=re.DOTALL)


def main() -> int:
    """Write the file, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    args = parser.parse_args()
    text = RFC.read_text()
    rendered = render(text)
    if args.check:
        return int(rendered != text)
    RFC.write_text(rendered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
