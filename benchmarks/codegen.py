"""What the Triton kernels compile to: instructions, memory accesses, predicted bound; needs no GPU.

    python benchmarks/codegen.py                      # bfloat16 and FLOOR, as a table
    python benchmarks/codegen.py --all --json FILE    # every variant, one JSON row each
    python benchmarks/codegen.py --check              # against the committed rows; exit code 1

**How instructions are counted.** The kernels have no loop, so each instruction of the program
runs once per thread: instructions per element = instructions x threads / elements of a tile. The
padding after the last EXIT does not count; address arithmetic and scalar instructions do.
**Widths** are those that carry most of the bytes: the payload's, not the scale's.
**The bound** compares the time to move an element's bytes at the datasheet's memory bandwidth with
the time to issue its instructions; ``headroom`` above 1 means memory-bound. It ignores latency and
occupancy: it is a prediction, not a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from common import run

from aten_mx.backends.triton import impl
from aten_mx.backends.triton.ahead import compile_launch
from aten_mx.backends.triton.launch import Launch
from aten_mx.backends.triton.targets import Target
from aten_mx.commands.files import check_writable, write_file
from aten_mx.formats import FORMATS

RESULTS = Path(__file__).parent / "results" / "codegen.json"
SHAPE = (8192, 8192)
BLOCK_SIZE = 32
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TARGETS = (
    ("cuda", 80),
    ("cuda", 90),
    ("cuda", 100),
    ("cuda", 120),
    ("hip", "gfx942"),
    ("hip", "gfx950"),
)
GROWTH = 1.2  # of the instructions, beyond which --check fails


class Gpu(NamedTuple):
    """Rates of a GPU from its vendor's datasheet."""

    name: str
    bandwidth: float
    """Bytes per second."""
    issue_rate: float
    """Instructions of single threads per second, over the whole GPU."""


# A thread's FP32 multiply-add is one instruction and two operations, so the issue rate is half the
# FP32 rate; AMD's counts packed instructions of two multiply-adds: a quarter.
GPUS = {
    "sm_90": Gpu("H200", 4.8e12, 67e12 / 2),  # NVIDIA H200 datasheet: 4.8 TB/s, 67 TFLOPS FP32
    "sm_100": Gpu("B200", 8.0e12, 75e12 / 2),  # HGX B200 datasheet: 8 TB/s, 75 TFLOPS FP32
    "gfx950": Gpu("MI350X", 8.0e12, 144.2e12 / 4),  # AMD MI350X: 8 TB/s, 144.2 TFLOPS FP32 vector
}


class Variant(NamedTuple):
    """One compiled kernel."""

    op: str
    elem_format: str
    mode: int | None
    """``None`` for dequantize_mx."""
    dtype: str
    """Of the floats: the input of quantize_mx, the output of dequantize_mx."""
    dim: int
    target: tuple[str, int | str]


def variants() -> Iterator[Variant]:
    """Every format, dtype, dimension and target, for blocks of 32 along the last and the first
    dimension. The scale mode is one constant to the kernel: FLOOR stands for all, and RCEIL beside
    it for bfloat16."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    for target, fmt, dtype, dim in itertools.product(TARGETS, FORMATS, dtypes, (-1, 0)):
        for mode in (0, 3) if dtype == "bfloat16" else (0,):
            yield Variant("quantize_mx", fmt, mode, dtype, dim, target)
        yield Variant("dequantize_mx", fmt, None, dtype, dim, target)


def is_common(variant: Variant) -> bool:
    """Whether the variant is in the digest."""
    return variant.dtype == "bfloat16" and not variant.mode


def prepare(variant: Variant) -> tuple[Launch, Target]:
    """The launch that a large tensor would get."""
    target = impl.target_of(*variant.target)
    dtype = getattr(torch, variant.dtype)
    x = torch.empty(SHAPE, dtype=dtype, device="meta")
    args = (variant.dim, BLOCK_SIZE, variant.elem_format)
    launch, output, scale = impl.prepare_quantize(x, *args, variant.mode or 0, 0, target)
    if variant.op == "dequantize_mx":
        launch, _ = impl.prepare_dequantize(output, scale, *args, dtype, 0, target)
    assert launch is not None
    return launch, target


class Code(NamedTuple):
    """What was found in a program."""

    instructions: list[str]
    registers: int
    shared: int
    local: int
    spills: int

    def width(self, pattern: str) -> int:
        """Bytes of the accesses matching ``pattern`` that move the most bytes in all."""
        widths = [_width(match) for op in self.instructions if (match := re.match(pattern, op))]
        moved = Counter[int]()
        for width in widths:
            moved[width] += width
        return moved.most_common(1)[0][0] if moved else 0


def _width(match: re.Match[str]) -> int:
    name = match[0]
    bits = re.search(r"\.(128|64)$|\.[US](16|8)$", name)  # SASS; without a suffix 32
    if name.isupper():
        return int(next(filter(None, bits.groups()))) // 8 if bits else 4
    words = re.search(r"dwordx(\d)$|dword$|(short|ubyte|byte|sbyte|u16|i16|u8|i8|b16|b8)", name)
    assert words, name
    if words[2]:
        return 2 if words[2] in ("short", "u16", "i16", "b16") else 1
    return 4 * int(words[1] or 1)


def disassemble(compiled: Any) -> Code:
    """The machine code's instructions and resources."""
    return (
        _read_amdgcn(compiled.asm["amdgcn"]) if "amdgcn" in compiled.asm else _read_sass(compiled)
    )


def _read_sass(compiled: Any) -> Code:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass, usage = (
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True)
            for option in ("--dump-sass", "--dump-resource-usage")
        )
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(.*?) ?;", sass.stdout, re.M)
    last = max(i for i, line in enumerate(lines) if line.startswith("EXIT"))
    instructions = [line.split()[0] for line in lines[: last + 1]]
    resources = {key: int(n) for key, n in re.findall(r"([A-Z]+):(\d+)", usage.stdout)}
    spills = sum(op.startswith(("STL", "LDL")) for op in instructions)
    local = resources["STACK"] + resources["LOCAL"]
    return Code(instructions, resources["REG"], compiled.metadata.shared, local, spills)


def _read_amdgcn(text: str) -> Code:
    body = text[: text.index("s_endpgm")]
    instructions = re.findall(r"^\t((?:[vs]|ds|global|buffer|flat)_\w+)", body, re.M)

    def number(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        assert match, name
        return int(match[1])

    spills = number("vgpr_spill_count") + number("sgpr_spill_count")
    local = number("private_segment_fixed_size")
    return Code(
        [*instructions, "s_endpgm"],
        number("vgpr_count"),
        number("group_segment_fixed_size"),
        local,
        spills,
    )


def analyse(variant: Variant) -> dict[str, Any]:
    """Compile a variant and describe its code: one row."""
    launch, target = prepare(variant)
    code = disassemble(compile_launch(launch, target))
    elements = launch.arguments["ROWS"] * launch.arguments["COLUMNS"]
    threads = launch.num_warps * target.warp_size
    backend, arch = variant.target
    name = f"sm_{arch}" if backend == "cuda" else str(arch)
    instructions = len(code.instructions) * threads / elements
    row = {
        "op": variant.op,
        "elem_format": variant.elem_format,
        "mode": variant.mode,
        "input_dtype": variant.dtype,
        "dim": variant.dim,
        "target": name,
        "instructions_per_element": round(instructions, 2),
        "load_bytes": code.width(r"LDG\S*|(global|buffer|flat)_load_\w+"),
        "store_bytes": code.width(r"STG\S*|(global|buffer|flat)_store_\w+"),
        "spills": code.spills,
        "local_bytes": code.local,
        "shared_bytes": code.shared,
        "registers": code.registers,
    }
    if gpu := GPUS.get(name):
        bits = FORMATS[variant.elem_format].bits
        payload = 0.5 if bits == 4 else 1.0
        moved = getattr(torch, variant.dtype).itemsize + payload + 1 / BLOCK_SIZE
        row["headroom"] = round(moved / gpu.bandwidth / (instructions / gpu.issue_rate), 2)
    return row


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a row."""
    names = ("op", "elem_format", "mode", "input_dtype", "dim", "target")
    return tuple(row[name] for name in names)


def regressions(row: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """In what a row is worse than the committed one."""
    faults = [
        f"{name} {committed[name]} -> {row[name]}"
        for name in ("load_bytes", "store_bytes")
        if row[name] < committed[name]
    ]
    if row["spills"] > committed["spills"]:
        faults.append(f"spills {committed['spills']} -> {row['spills']}")
    before, now = committed["instructions_per_element"], row["instructions_per_element"]
    if now > GROWTH * before:
        faults.append(f"instructions_per_element {before} -> {now}")
    return faults


def committed_rows() -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows in the repository, by :func:`key`."""
    return {key(row): row for row in json.loads(RESULTS.read_text())["rows"]}


def digest(rows: list[dict[str, Any]]) -> str:
    """The rows for bfloat16 and FLOOR as a Markdown table: instructions per element, and in
    parentheses the headroom where the GPU's rates are known."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        if row["input_dtype"] == "bfloat16" and not row["mode"]:
            name = (row["op"], row["elem_format"], str(row["dim"]))
            headroom = f" ({row['headroom']:.1f})" if "headroom" in row else ""
            cell = f"{row['instructions_per_element']:.1f}{headroom}"
            cells.setdefault(name, {})[row["target"]] = cell
    head = ["op", "format", "dim", *targets]
    body = [[*name, *(found[target] for target in targets)] for name, found in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every variant (minutes)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--check", action="store_true", help="compare with the committed rows")
    args = parser.parse_args()
    check_writable("--json", args.json)
    chosen = [variant for variant in variants() if args.all or is_common(variant)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        rows = pool.map(analyse, chosen, chunksize=8)
    print(digest(rows))
    if args.json:
        head = {"torch": torch.__version__.split("+")[0], "triton": triton.__version__}
        lines = ",\n".join(json.dumps(row) for row in rows)
        text = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
        content = f'{{{text}, "rows": [\n{lines}\n]}}\n'
        write_file("--json", args.json, lambda path: path.write_text(content))
    if args.check:
        committed = committed_rows()
        faults = [(key(row), regressions(row, committed[key(row)])) for row in rows]
        faults = [(where, what) for where, what in faults if what]
        for where, what in faults:
            print(*where, *what, file=sys.stderr)
        return int(bool(faults))
    return 0


if __name__ == "__main__":
    run(main)
