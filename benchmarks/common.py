"""What the benchmarks share: interleaved timing, the load of others, the peers, the machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

import aten_mx
from aten_mx.backends.cpu import BUILD_HINT
from aten_mx.commands.files import FileError
from aten_mx.commands.streams import guarded, print_fault
from aten_mx.demo.errors import DemoError
from aten_mx.formats import ElementFormat
from aten_mx.scaling import ScaleCalculationMode

QUANTIZE = torch.ops.aten_mx.quantize_mx.format
DEQUANTIZE = torch.ops.aten_mx.dequantize_mx.format
FLOOR, RCEIL = ScaleCalculationMode.FLOOR.value, ScaleCalculationMode.RCEIL.value
BLOCK_SIZE = 32
BUSY = 0.1  # from this many CPUs in use by other processes, the times are not reliable
Call = Callable[[], Any]


class MissingError(Exception):
    """The machine lacks what a benchmark measures; the text is the one line that the user sees."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a benchmark and exit: 0, 1 for a broken limit, 2 with one line for a fault."""

    def call() -> int:
        try:
            return main() or 0
        except BrokenPipeError:
            raise
        except (MissingError, FileError, DemoError, ImportError, OSError) as error:
            return print_fault(Path(sys.argv[0]).stem, error)

    sys.exit(guarded(call))


def need_native_kernel() -> None:
    """Raise MissingError unless the native kernel answers for CPU tensors."""
    if not any(row.kernel.startswith("native CPU kernel") for row in aten_mx.kernels()):
        raise MissingError(f"the native CPU kernel does not answer here; build it: {BUILD_HINT}")


class Time(NamedTuple):
    """Milliseconds of one call."""

    median: float
    minimum: float


def wall_clock(call: Call) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    result = call()
    elapsed = 1e3 * (time.perf_counter() - start)
    del result  # the call's time does not include freeing the memory
    return elapsed


def moved_bytes(x: Tensor, fmt: ElementFormat) -> float:
    """What quantizing ``x`` must read and write."""
    return x.nbytes + x.numel() * (1 / fmt.codes_per_byte + 1 / BLOCK_SIZE)


def interleaved(
    calls: dict[str, Call], repeats: int, clock: Callable[[Call], float] = wall_clock
) -> dict[str, Time]:
    """Time every call in turn, round after round, so that a slow spell of the machine hits all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            elapsed = clock(call)
            if repeat >= 2:  # the first rounds warm up caches and the allocator
                times[name].append(elapsed)
    return {name: Time(statistics.median(values), min(values)) for name, values in times.items()}


def cpu_seconds_of_others() -> float | None:
    """CPU time that went to other processes, or to other guests of the host, since it started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.read_text().splitlines()[0].split()[1:9]
    )
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return busy - own.user - own.system


def torchao_call(fmt: ElementFormat, mode: str) -> Callable[[Tensor], Any] | None:
    """TorchAO's ``to_mx`` with the scale mode ``mode``; it has no INT8."""
    if fmt.twos_complement:
        return None
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scale_mode = ScaleCalculationMode(mode)
    return lambda x: to_mx(x, fmt.dtype or fmt.name, BLOCK_SIZE, scale_mode)


def compiled(function: Callable[[Tensor], Any], x: Tensor) -> tuple[Call | None, str]:
    """``function`` of ``x`` under the default ``torch.compile``, or why there is none."""
    # A whole graph: half of it in eager mode would be timed under the wrong name.
    call = torch.compile(function, fullgraph=True)
    try:
        call(x)
    except Exception as error:  # whatever it is, it is the row's result
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The C++ compiler's verdict says more than the first line, which is its command.
        text = next((line for line in lines if "error:" in line), lines[0] if lines else "")
        return None, f"{type(error).__name__}: {text}"
    return lambda: call(x), ""


def cpu_model() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
