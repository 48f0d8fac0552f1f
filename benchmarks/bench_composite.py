"""Time and memory of the emulated kernel against TorchAO's ``to_mx`` and ``copy_``, in one run.

Machines are noisy and shared: the calls are interleaved, medians are compared, and only ratios mean
something. ``--check`` exits with 1 where a limit of the project isn't kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import aten_mx
from aten_mx.formats import FORMATS

warnings.filterwarnings(
    "ignore"
)  # TorchAO warns at import and in to_mx; nothing here depends on it
logging.disable(logging.WARNING)
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402

logging.disable(logging.NOTSET)

BLOCK_SIZE = 32
EAGER_LIMIT = {8: 2.0, 6: 1.0, 4: 1.0}  # by the element's bits, in TorchAO's eager times
COMPILED_LIMIT = 1.2  # in TorchAO's compiled RCEIL times
MEMORY_LIMIT = 6.0  # in the input's bytes


def interleaved(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call, all measured alternately."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repeat >= 2:  # the first rounds warm caches and the allocator up
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(call: Callable[[], Any], input_bytes: int) -> float:
    """Most memory that PyTorch held at once during ``call``, outputs included, in input sizes."""
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = call()
    del kept
    held = peak = 0
    # Events carry each allocation and release; their running sum is what is held.
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / input_bytes


def eager_rows(x: torch.Tensor, repeats: int) -> list[dict[str, Any]]:
    """One row a format: eager times, and peak memory."""
    target = torch.empty_like(x)
    rows = []
    for fmt in FORMATS.values():
        calls: dict[str, Callable[[], Any]] = {
            "quantize": lambda fmt=fmt: torch.ops.aten_mx.quantize_mx.format(
                x, -1, BLOCK_SIZE, fmt.name
            ),
            "copy_": lambda: target.copy_(x),
        }
        if not fmt.twos_complement:  # TorchAO has no INT8
            element = fmt.dtype or fmt.name
            calls["torchao"] = lambda element=element: to_mx(
                x, element, BLOCK_SIZE, ScaleCalculationMode.FLOOR
            )
        output, scale = calls["quantize"]()
        calls["dequantize"] = lambda o=output, s=scale, fmt=fmt: (
            torch.ops.aten_mx.dequantize_mx.format(o, s, -1, BLOCK_SIZE, fmt.name, x.dtype)
        )
        row: dict[str, Any] = {"kind": "eager", "dtype": str(x.dtype), "format": fmt.name}
        row |= interleaved(calls, repeats)
        row["memory"] = peak_memory(calls["quantize"], x.nbytes)
        rows.append(row)
    return rows


def compiled_rows(x: torch.Tensor, repeats: int) -> list[dict[str, Any]]:
    """One row a format: times under the default ``torch.compile``, RCEIL."""
    target = torch.empty_like(x)
    rows = []
    for fmt in FORMATS.values():
        torch._dynamo.reset()
        ours = torch.compile(
            lambda t, name=fmt.name: torch.ops.aten_mx.quantize_mx.format(
                t, -1, BLOCK_SIZE, name, 3
            )
        )
        calls: dict[str, Callable[[], Any]] = {
            "quantize": lambda ours=ours: ours(x),
            "copy_": lambda: target.copy_(x),
        }
        row: dict[str, Any] = {"kind": "compiled", "dtype": str(x.dtype), "format": fmt.name}
        if not fmt.twos_complement:
            theirs = torch.compile(
                lambda t, element=fmt.dtype or fmt.name: to_mx(
                    t, element, BLOCK_SIZE, ScaleCalculationMode.RCEIL
                )
            )
            try:
                theirs(x)
                calls["torchao"] = lambda theirs=theirs: theirs(x)
            except Exception as error:  # what it raises is the row's result
                row["torchao_error"] = type(error).__name__
        rows.append(row | interleaved(calls, repeats))
    return rows


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """What was reached and what is allowed, for each limit that applies."""
    results = []
    for row in rows:
        label = f"{row['kind']} {row['format']} {row['dtype']}"
        if "torchao" in row:
            ratio = row["quantize"] / row["torchao"]
            bits = FORMATS[row["format"]].bits
            limit = COMPILED_LIMIT if row["kind"] == "compiled" else EAGER_LIMIT[bits]
            results.append((f"{label}: TorchAO times", ratio, limit))
        if "memory" in row:
            results.append((f"{label}: peak memory / input", row["memory"], MEMORY_LIMIT))
    return results


def main() -> int:
    """Measure, print, and with ``--check`` judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns (default 4096)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default 15)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    arguments = parser.parse_args()

    print(
        f"{datetime.date.today()}: aten_mx {aten_mx.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, ({arguments.size}, {arguments.size}), medians of "
        f"{arguments.repeats} in ms; FLOOR in eager, RCEIL compiled"
    )
    columns = ("quantize", "torchao", "copy_", "dequantize", "memory")
    print(f"{'':9}{'input':16}{'format':10}" + "".join(f"{name:>12}" for name in columns))
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(arguments.size, arguments.size).to(dtype)
        for measure in (eager_rows, compiled_rows):
            for row in measure(x, arguments.repeats):
                rows.append(row)
                cells = "".join(f"{row[c]:12.2f}" if c in row else f"{'-':>12}" for c in columns)
                print(f"{row['kind']:9}{row['dtype']:16}{row['format']:10}{cells}")

    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    broken = 0
    for what, reached, limit in verdicts(rows):
        broken += reached > limit
        print(f"{'PASS' if reached <= limit else 'FAIL'}  {what}: {reached:.2f}, at most {limit}")
    return int(arguments.check and broken > 0)


if __name__ == "__main__":
    sys.exit(main())
