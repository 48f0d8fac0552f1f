"""Time and memory of the emulated kernel against TorchAO's ``to_mx`` and ``copy_``, in one run.

Machines are noisy and shared: the calls of a row are interleaved, and only ratios mean something.
The last block compares them with the project's limits; ``--check`` exits with 1 if one is broken.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Before torch is imported: what is timed is compiled here, by this PyTorch and this source, and is
# the emulated kernel, whatever has been built.
os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "ATEN_MX_CPU": "off"}

import torch
from common import (
    BLOCK_SIZE,
    BUSY,
    DEQUANTIZE,
    FLOOR,
    QUANTIZE,
    RCEIL,
    Call,
    compiled,
    cpu_model,
    cpu_seconds_of_others,
    interleaved,
    run,
    torchao_call,
)
from torch import Tensor

import aten_mx
from aten_mx.commands.files import check_writable, write_json
from aten_mx.formats import FORMATS, ElementFormat

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EAGER_LIMIT = {8: 2.0, 6: 1.0, 4: 1.0}  # by the element's bits, in TorchAO's eager times
COMPILED_LIMIT = 1.2  # in TorchAO's compiled RCEIL times
MEMORY_LIMIT = 6.0  # in the input's bytes


# --- time -----------------------------------------------------------------------------------------


def measure(x: Tensor, fmt: ElementFormat, repeats: int) -> dict[str, Any]:
    """One row: times by call, and the errors of what doesn't compile."""
    torch._dynamo.reset()  # else rows count as recompilations of one function, and end in eager
    target = torch.empty_like(x)
    output, scale = QUANTIZE(x, -1, BLOCK_SIZE, fmt.name, FLOOR)
    calls: dict[str, Call] = {
        "copy_": lambda: target.copy_(x),
        "eager": lambda: QUANTIZE(x, -1, BLOCK_SIZE, fmt.name, FLOOR),
        "dequantize": lambda: DEQUANTIZE(output, scale, -1, BLOCK_SIZE, fmt.name, x.dtype),
    }
    errors = {}
    if peer := torchao_call(fmt, "floor"):
        calls["torchao_eager"] = lambda: peer(x)
    for name, function in (
        ("compiled", lambda t: QUANTIZE(t, -1, BLOCK_SIZE, fmt.name, RCEIL)),
        ("torchao_compiled", torchao_call(fmt, "rceil")),
    ):
        if function is not None:
            call, error = compiled(function, x)
            if call is None:
                errors[name] = error
            else:
                calls[name] = call
    start, before = time.perf_counter(), cpu_seconds_of_others()
    times = {name: value._asdict() for name, value in interleaved(calls, repeats).items()}
    wall, after = time.perf_counter() - start, cpu_seconds_of_others()
    row: dict[str, Any] = {"dtype": str(x.dtype)[6:], "format": fmt.name}
    row |= {"ms": times, "errors": errors}
    if before is not None and after is not None:
        row["others"] = max(0.0, after - before) / wall
    return row


def ratio(row: dict[str, Any], name: str, base: str, statistic: str = "median") -> float | None:
    """Time of ``name`` in times of ``base``, where both were measured."""
    times = row["ms"]
    if name not in times or base not in times:
        return None
    return float(times[name][statistic] / times[base][statistic])


# --- memory ---------------------------------------------------------------------------------------


def memory_status(field: str) -> int:
    """A field of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def peak_memory(size: int) -> dict[str, dict[str, float]]:
    """Most memory that one eager call adds, outputs included, in sizes of its input.

    Counted by the kernel, so nothing escapes it: writing 5 to ``clear_refs`` sets the process's
    high-water mark of resident memory (VmHWM) back to what is resident now.
    """
    peaks: dict[str, dict[str, float]] = {}
    for name, dtype in DTYPES.items():
        x = torch.randn(size, size).to(dtype)
        for fmt in FORMATS.values():
            QUANTIZE(x, -1, BLOCK_SIZE, fmt.name, FLOOR)  # threads and code pages come first
            Path("/proc/self/clear_refs").write_text("5")
            before = memory_status("VmHWM")
            result = QUANTIZE(x, -1, BLOCK_SIZE, fmt.name, FLOOR)
            peaks.setdefault(name, {})[fmt.name] = (memory_status("VmHWM") - before) / x.nbytes
            del result
    return peaks


def peak_memory_in_subprocess(size: int) -> dict[str, dict[str, float]]:
    """``peak_memory`` in a process of its own; empty where the system has no such counter."""
    if not Path("/proc/self/clear_refs").exists():
        return {}
    # Tensors from 64 KiB on get their own pages, which are returned when they are freed. Otherwise
    # the memory of the call before stays resident, and the measured call seems to need none.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    command = [sys.executable, __file__, "--peak-memory", "--size", str(size)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    peaks: dict[str, dict[str, float]] = json.loads(done.stdout)
    return peaks


# --- report ---------------------------------------------------------------------------------------

# Title, call, the call it is divided by.
COLUMNS = (
    ("eager/TorchAO", "eager", "torchao_eager"),
    ("eager/copy_", "eager", "copy_"),
    ("TorchAO/copy_", "torchao_eager", "copy_"),
    ("comp./TorchAO", "compiled", "torchao_compiled"),
    ("comp./copy_", "compiled", "copy_"),
    ("deq./copy_", "dequantize", "copy_"),
)


def header(size: int, repeats: int) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "date": str(datetime.date.today()),
        "aten_mx": aten_mx.__version__,
        "torch": torch.__version__,
        "torchao": importlib.metadata.version("torchao"),
        "threads": torch.get_num_threads(),
        "cpu": cpu_model(),
        "shape": [size, size],
        "repeats": repeats,
    }


def print_row(row: dict[str, Any]) -> None:
    """Ratios of the medians, and of the minima in parentheses."""
    cells = [f"{row['dtype']:9}{row['format']:9}{row['ms']['copy_']['median']:9.2f}"]
    for _, name, base in COLUMNS:
        median, minimum = ratio(row, name, base), ratio(row, name, base, "minimum")
        cells.append(f"{'-' if median is None else f'{median:.2f} ({minimum:.2f})':>16}")
    for name in ("memory", "others"):
        cells.append(f"{row[name]:8.2f}" if name in row else f"{'-':>8}")
    print("".join(cells), flush=True)


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, float | None, float]]:
    """What was reached, ``None`` if the op failed, and what is allowed, for each limit."""
    results: list[tuple[str, float | None, float]] = []
    for row in rows:
        label = f"{row['dtype']} {row['format']}"
        eager = ratio(row, "eager", "torchao_eager")
        if eager is not None:
            limit = EAGER_LIMIT[FORMATS[row["format"]].bits]
            results.append((f"{label}: eager / TorchAO's eager", eager, limit))
        if "torchao_compiled" in row["ms"]:
            reached = ratio(row, "compiled", "torchao_compiled")
            results.append((f"{label}: compiled / TorchAO's compiled", reached, COMPILED_LIMIT))
        elif "compiled" in row["errors"]:
            results.append((f"{label}: compiled", None, COMPILED_LIMIT))
        if "memory" in row:
            results.append((f"{label}: peak memory / input", row["memory"], MEMORY_LIMIT))
    return results


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns (default 4096)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default 15)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    parser.add_argument("--peak-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_writable("--json", arguments.json)
    if arguments.peak_memory:
        print(json.dumps(peak_memory(arguments.size)))
        return 0

    logging.disable(logging.WARNING)  # TorchAO logs which of its extensions don't load
    about = header(arguments.size, arguments.repeats)
    print(*(f"{name}: {value}" for name, value in about.items()), sep="\n")
    print(
        "\nRatios of median times, of minima in parentheses. Eager FLOOR, compiled RCEIL; memory "
        "is the eager call's peak, outputs included, in sizes of the input; others: the CPUs "
        "that other processes kept busy meanwhile.\n"
    )
    titles = "".join(f"{title:>16}" for title, _, _ in COLUMNS)
    print(f"{'input':9}{'format':9}{'copy_ ms':>9}{titles}{'memory':>8}{'others':>8}", flush=True)
    # With small tensors the process's own pages would dominate.
    peaks = peak_memory_in_subprocess(max(arguments.size, 2048))
    rows: list[dict[str, Any]] = []
    for name, dtype in DTYPES.items():
        x = torch.randn(arguments.size, arguments.size).to(dtype)
        for fmt in FORMATS.values():
            row = measure(x, fmt, arguments.repeats)
            if peaks:
                row["memory"] = peaks[name][fmt.name]
            rows.append(row)
            print_row(row)

    print("\nNot compiled:")
    for row in rows:
        for name, error in row["errors"].items():
            print(f"  {row['dtype']} {row['format']} {name}: {error[:200]}")
        if FORMATS[row["format"]].twos_complement:
            print(f"  {row['dtype']} {row['format']} torchao: has no such format")
    if any(row.get("others", 0.0) > BUSY for row in rows):
        print(
            "\nOther processes were busy: where a thread waits for its CPU, short times come out "
            "as multiples of the scheduler's slice, and their ratios mean nothing. Run it again."
        )
    print("\nLimits:")
    failures = 0
    for what, reached, limit in verdicts(rows):
        passed = reached is not None and reached <= limit
        failures += not passed
        value = "doesn't compile" if reached is None else f"{reached:.2f}"
        print(f"{'PASS' if passed else 'FAIL'}  {what}: {value}, at most {limit}")
    write_json(arguments.json, {"about": about, "rows": rows})
    return int(arguments.check and failures > 0)


if __name__ == "__main__":
    run(main)
