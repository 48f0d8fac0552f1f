"""The Triton kernels on a GPU: the specification, tensors above 2^31 elements, and speed.

``python benchmarks/gpu_check.py`` on a machine with a GPU, torch, Triton and nothing else; no
network. All ratios are to a device-to-device ``copy_`` of the same input, in the same rounds. Each
part reports as it ends, and ``--json`` is written after each, so that nothing is lost if the
time runs out. ``--dry-run`` rehearses every line on the CPU, in Triton's interpreter, with tiny
tensors: its times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Both are read when Triton and the package are imported. The emulated kernel is the reference.
os.environ |= {"TRITON_DEFAULT_FP_FUSION": "1"} | (
    {"TRITON_INTERPRET": "1", "ATEN_MX_CPU": "off"} if "--dry-run" in sys.argv else {}
)

import torch
from common import (
    BLOCK_SIZE,
    DEQUANTIZE,
    FLOOR,
    QUANTIZE,
    RCEIL,
    Call,
    MissingError,
    compiled,
    interleaved,
    moved_bytes,
    run,
    torchao_call,
    wall_clock,
)
from torch import Tensor

import aten_mx
from aten_mx import emulated
from aten_mx.backends import triton
from aten_mx.commands.files import check_writable, write_json
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.testing import CHECKS, answering_kernels, check_kernel

DRY_RUN = "--dry-run" in sys.argv
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
FP8 = FORMATS["fp8_e4m3"]
# Share of the copy's bandwidth, bfloat16 to MXFP8 at the largest size, by dim.
LIMITS = {-1: 0.90, 0: 0.85}
Row = dict[str, Any]


class Plan(NamedTuple):
    """What a machine can do in six minutes."""

    device: str
    checks: tuple[str, ...]
    large: tuple[int, int]
    sizes: tuple[int, ...]
    repeats: int
    calls: int


# The check named "compiled" would spend the time on Inductor's own compilations.
ON_GPU = Plan(
    device="cuda",
    checks=tuple(name for name in CHECKS if name not in ("compiled", "maxima")),
    large=(32_768, 65_536 + 4096),
    sizes=(2048, 4096, 8192, 16_384),
    repeats=20,
    calls=1000,
)
REHEARSAL = Plan("cpu", ("golden", "swizzled"), (64, 256), (32, 64), 2, 3)


def device_clock(call: Call) -> float:
    """Milliseconds of one call on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def conformance(plan: Plan) -> Iterator[Row]:
    """One row per check: cases and how many failed."""
    for check in plan.checks:
        start = time.monotonic()
        report = check_kernel(plan.device, checks=[check])
        row = {"check": check, "cases": len(report.results), "failed": len(report.failures)}
        row["first"] = str(report.failures[0]) if report.failures else ""
        yield row | {"passed": report.passed, "seconds": round(time.monotonic() - start, 1)}


def large(plan: Plan) -> Iterator[Row]:
    """More than 2^31 elements: the last rows and columns are those of the emulated kernel."""
    x = torch.randn(plan.large, dtype=torch.bfloat16, device=plan.device)
    tail = 4 * BLOCK_SIZE
    for dim in (-1, 0):
        for fmt in (FP8, FORMATS["fp4_e2m1"]):
            output, scale = QUANTIZE(x, dim, BLOCK_SIZE, fmt.name, RCEIL)
            corner = x[-tail:, -tail:].contiguous()
            want, want_scale = emulated.quantize_mx(corner, dim, BLOCK_SIZE, fmt.name, RCEIL)
            back = DEQUANTIZE(output, scale, dim, BLOCK_SIZE, fmt.name, torch.bfloat16)
            want_back = emulated.dequantize_mx(
                want, want_scale, dim, BLOCK_SIZE, fmt.name, torch.bfloat16
            )
            pairs = ((output, want), (scale, want_scale), (back, want_back))
            passed = all(same_corner(whole, part) for whole, part in pairs)
            yield {"format": fmt.name, "dim": dim, "elements": x.numel(), "passed": passed}
            del output, scale, back


def same_corner(whole: Tensor, part: Tensor) -> bool:
    """Whether ``whole`` ends, in both dimensions, with the bits of ``part``."""
    rows, columns = part.shape
    view = torch.int16 if part.dtype.itemsize == 2 else torch.uint8
    return torch.equal(whole.view(view)[-rows:, -columns:], part.view(view))


def peers(x: Tensor, dim: int) -> dict[str, Call]:
    """TorchAO's compiled ``to_mx`` and its Triton kernel, where they are there and run."""
    try:
        to_mx = torchao_call(FP8, "rceil")
        from torchao.prototype.mx_formats import kernels
    except ImportError as error:
        print(f"  no TorchAO here: {error}")
        return {}
    calls: dict[str, Call] = {}
    moved = x if dim == -1 else x.t()
    if to_mx is not None:
        call, fault = compiled(lambda t: to_mx(t.contiguous()), moved)
        if call is None:
            print(f"  TorchAO compiled: {fault}")
        else:
            calls["TorchAO compiled"] = call
    # Its names count from the other side: dim0 scales along the last dimension of a row.
    name = "triton_to_mxfp8_dim0" if dim == -1 else "triton_to_mxfp8_dim1"
    kernel = getattr(kernels, name, None)
    if kernel is not None and x.dtype is torch.bfloat16:
        call = partial(kernel, x, BLOCK_SIZE)
        try:
            call()
            calls["TorchAO Triton"] = call
        except Exception as error:  # made for other cards: then it has no row
            print(f"  TorchAO {name}: {type(error).__name__}: {error}")
    return calls


def speed(plan: Plan) -> Iterator[Row]:
    """GB/s of every call and the share of the copy's, one row per call."""
    for size in plan.sizes:
        largest = size == plan.sizes[-1]
        for name, dtype in DTYPES.items():
            x = torch.randn(size, size, device=plan.device).to(dtype)
            target = torch.empty_like(x)
            for fmt in FORMATS.values() if largest else (FP8,):
                for dim in (-1, 0):
                    args = (dim, BLOCK_SIZE, fmt.name)
                    payload, scale = QUANTIZE(x, *args, RCEIL)
                    calls: dict[str, Call] = {
                        "copy_": partial(target.copy_, x),
                        "quantize floor": partial(QUANTIZE, x, *args, FLOOR),
                        "quantize rceil": partial(QUANTIZE, x, *args, RCEIL),
                        "dequantize": partial(DEQUANTIZE, payload, scale, *args, dtype),
                    }
                    if fmt is FP8:
                        calls |= peers(x, dim)
                    yield from speed_rows(plan, calls, x, fmt, {"dtype": name, "dim": dim})


def speed_rows(
    plan: Plan, calls: dict[str, Call], x: Tensor, fmt: ElementFormat, common: Row
) -> Iterator[Row]:
    """Time the calls and judge the two that have a limit."""
    clock = wall_clock if plan.device == "cpu" else device_clock
    timed = interleaved(calls, plan.repeats, clock)
    times = {name: 1e3 * each.median for name, each in timed.items()}
    copy = 2e-3 * x.nbytes / times["copy_"]
    for call, elapsed in times.items():
        moved = 2 * x.nbytes if call == "copy_" else moved_bytes(x, fmt)
        row = {"call": call, "format": fmt.name, "size": len(x)} | common
        row |= {"us": elapsed, "GB/s": 1e-3 * moved / elapsed}
        row["of copy"] = row["GB/s"] / copy
        ours = call.startswith("quantize") and fmt is FP8 and x.dtype is torch.bfloat16
        if ours and len(x) == plan.sizes[-1]:
            row["limit"] = LIMITS[common["dim"]]
            row["passed"] = DRY_RUN or row["of copy"] >= row["limit"]
        yield row


def launch(plan: Plan) -> Iterator[Row]:
    """The host's microseconds per call, (1, 4096), without waiting for the device."""
    x = torch.randn(1, 4096, dtype=torch.bfloat16, device=plan.device)
    target = torch.empty_like(x)
    calls: dict[str, Call] = {
        "copy_": partial(target.copy_, x),
        "op": partial(torch.ops.aten_mx.quantize_mx, x, -1, BLOCK_SIZE, FP8.dtype),
        "kernel alone": partial(triton.quantize_mx, x, -1, BLOCK_SIZE, FP8.name),
        "emulated": partial(emulated.quantize_mx, x, -1, BLOCK_SIZE, FP8.name),
    }
    for name, call in calls.items():
        call()
        synchronize(plan.device)
        start = time.perf_counter()
        for _ in range(plan.calls):
            call()
        elapsed = 1e6 * (time.perf_counter() - start) / plan.calls
        synchronize(plan.device)
        yield {"call": name, "us": elapsed}


def synchronize(device: str) -> None:
    """Wait for what was launched."""
    if device != "cpu":
        torch.cuda.synchronize()


PARTS: dict[str, Callable[[Plan], Iterator[Row]]] = {
    part.__name__: part for part in (conformance, large, launch, speed)
}


def plot(rows: list[Row], path: Path) -> None:
    """Share of the copy's bandwidth over size, bfloat16 to MXFP8."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    chosen = [row for row in rows if row["dtype"] == "bfloat16" and row["format"] == FP8.name]
    for axis, dim in zip(axes, (-1, 0), strict=True):
        here = [row for row in chosen if row["dim"] == dim and row["call"] != "copy_"]
        for call in dict.fromkeys(row["call"] for row in here):
            points = [(row["size"], row["of copy"]) for row in here if row["call"] == call]
            axis.semilogx(*zip(*points, strict=True), base=2, marker="o", label=call)
        axis.axhline(LIMITS[dim], color="gray", linestyle="--", label="to reach")
        axis.set(title=f"dim={dim}", xlabel="rows and columns", ylim=(0, None))
    axes[0].set_ylabel("bandwidth / that of copy_")
    axes[0].legend()
    figure.suptitle("bfloat16 to MXFP8 (fp8_e4m3)")
    figure.savefig(path, dpi=150)


def about(plan: Plan) -> Row:
    """The machine and the versions."""
    import triton as triton_package

    card = "none: Triton's interpreter" if DRY_RUN else torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "triton": triton_package.__version__}
    versions["aten_mx"] = aten_mx.__version__
    return {"date": time.strftime("%Y-%m-%d"), "device": card} | versions


def show(row: Row) -> None:
    """One line."""
    mark = {True: "PASS", False: "FAIL", None: "    "}[row.get("passed")]
    cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
    names = (f"{name}={cell}" for name, cell in zip(row, cells, strict=True) if name != "passed")
    print(mark, *names, flush=True)


def main() -> int:
    """Run the parts, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, interpreted, tiny")
    parser.add_argument("--only", choices=PARTS, action="append", help="run these parts alone")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--plot", type=Path, help="draw the share of the copy's bandwidth")
    args = parser.parse_args()
    check_writable("--json", args.json)
    check_writable("--plot", args.plot)
    plan = REHEARSAL if args.dry_run else ON_GPU
    if args.dry_run:
        aten_mx.register_kernel("quantize_mx", "CPU", triton.quantize_mx)
        aten_mx.register_kernel("dequantize_mx", "CPU", triton.dequantize_mx)
    elif not torch.cuda.is_available():
        raise MissingError("no GPU here; --dry-run rehearses without one")
    torch.empty(1, device=plan.device)  # the kernels register at the device's first use
    answers = answering_kernels(plan.device)
    if any("Composite" in kernel for kernel in answers.values()):
        fault = f"not every overload has a kernel of its own on {plan.device}: {answers}"
        raise MissingError(fault)
    report: dict[str, Any] = {"about": about(plan)}
    show(report["about"])
    failed = 0
    for name in args.only or PARTS:
        start = time.monotonic()
        print(f"\n{name}")
        report[name] = []
        for row in PARTS[name](plan):
            show(row)
            report[name].append(row)
            failed += row.get("passed") is False
            write_json(args.json, report)
        print(f"  {time.monotonic() - start:.0f} s")
    if args.plot and "speed" in report:
        plot(report["speed"], args.plot)
    return int(failed > 0)


if __name__ == "__main__":
    run(main)
