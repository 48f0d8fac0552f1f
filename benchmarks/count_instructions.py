"""Machine instructions the native CPU kernel executes for a block of 32, counted one by one.

The kernel runs in a process of its own that is stepped through with ``ptrace``, so that the counts
are exact, AVX-512 included, and need no hardware counter, which virtual machines often lack. Each
count is the difference between two sizes, so the fixed cost of a call drops out. Linux on x86-64.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from common import need_native_kernel, run

from aten_mx.formats import FORMATS

BLOCK_SIZE = 32
COLUMNS = 256
ROWS = (128, 256)  # both fill the tiles of a dim=0 call
_ATTACH, _CONTINUE, _SINGLE_STEP = 16, 7, 9

# Stops itself before and after each call.
PROGRAM = """
import os, signal, sys
import torch
import aten_mx
quantize, dequantize = torch.ops.aten_mx.quantize_mx.format, torch.ops.aten_mx.dequantize_mx.format
torch.set_num_threads(1)
op, fmt, dtype, dim = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3]), int(sys.argv[4])
for rows in map(int, sys.argv[6:]):
    x = torch.randn(rows, int(sys.argv[5])).to(dtype)
    payload, scale = quantize(x, dim, 32, fmt)
    call = {
        "quantize_mx": lambda: quantize(x, dim, 32, fmt),
        "dequantize_mx": lambda: dequantize(payload, scale, dim, 32, fmt, dtype),
    }[op]
    call()
    os.kill(os.getpid(), signal.SIGSTOP)
    call()
    os.kill(os.getpid(), signal.SIGSTOP)
"""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, pid: int) -> None:
    """One request without data."""
    if _libc.ptrace(request, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request} of process {pid}")


def wait_for(pid: int) -> int:
    """The signal that stopped the process."""
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        raise RuntimeError(f"the kernel's process ended: status {status}")
    return os.WSTOPSIG(status)


def stops(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Run the process from one of its own stops to the next."""
    while True:
        ptrace(_CONTINUE, process.pid)
        if wait_for(process.pid) == signal.SIGSTOP:
            yield


def steps_to_next_stop(pid: int) -> int:
    """Single steps, each one instruction."""
    steps = 0
    while True:
        ptrace(_SINGLE_STEP, pid)
        if wait_for(pid) == signal.SIGSTOP:
            return steps
        steps += 1


def instructions(op: str, fmt: str, dtype: str, dim: int) -> float:
    """Instructions per block."""
    arguments = (op, fmt, dtype, dim, COLUMNS, *ROWS)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env={**os.environ, "ATEN_MX_CPU": "require"},
    )
    ptrace(_ATTACH, process.pid)
    wait_for(process.pid)
    own_stops = stops(process)
    counts = []
    for _ in ROWS:
        next(own_stops)
        counts.append(steps_to_next_stop(process.pid))
    process.kill()
    process.wait()
    return (counts[1] - counts[0]) / ((ROWS[1] - ROWS[0]) * COLUMNS / BLOCK_SIZE)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=FORMATS, action="append", help="this one alone")
    args = parser.parse_args()
    import torch

    need_native_kernel()
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"instructions for a block of {BLOCK_SIZE}, torch {torch.__version__}, {capability}")
    columns = [(dtype, dim) for dtype in ("float32", "bfloat16") for dim in (-1, 0)]
    print(f"{'':24}" + "".join(f"{dtype:>10} dim={dim:<3}" for dtype, dim in columns))
    for op in ("quantize_mx", "dequantize_mx"):
        for fmt in args.format or FORMATS:
            counts = (f"{instructions(op, fmt, *column):17.1f}" for column in columns)
            print(f"{op:14}{fmt:10}", *counts, sep="", flush=True)


if __name__ == "__main__":
    run(main)
