"""What a call costs beyond its kernel: validation and the registration hook, in microseconds.

The kernel returns ready-made outputs. It is registered once as a plain op of ``torch.library``
without validation, once through ``aten_mx.register_kernel``; both are called in turn, and the
medians of many short rounds are compared. ``--check`` exits with 1 where the limit is broken.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import run

import aten_mx
from aten_mx import dispatch

# Microseconds per call above the bare kernel. C++ validates where the native CPU library is loaded
# (`python -m aten_mx build`), else Python.
LIMITS = {"Python": 8.0, "C++": 1.0}
SHAPE = (1, 4096)
ROUNDS, CALLS = 200, 200
E4M3 = torch.float8_e4m3fn


def median_times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds per call, the rounds interleaved."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Print the table.

    Returns:
        1 where ``--check`` was given and the limit is broken, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 above the limit")
    args = parser.parse_args()

    x = torch.randn(SHAPE)
    outputs = aten_mx.quantize_mx(x)

    def bare(*args: Any, **kwargs: Any) -> Any:
        return outputs

    plain = torch.library.Library("aten_mx_bench", "DEF")
    schema = "Tensor self, int dim, int block_size, ScalarType dtype, int mode=0"
    plain.define(f"bare({schema}) -> (Tensor output, Tensor scale)")
    plain.impl("bare", bare, "CPU")
    handle = aten_mx.register_kernel("quantize_mx", "CPU", bare, override=True)
    bare_op, op = torch.ops.aten_mx_bench.bare, torch.ops.aten_mx.quantize_mx
    try:
        times = median_times(
            {
                "kernel, called directly": lambda: bare(x, -1, 32, E4M3, 0),
                "kernel as an op, no validation": lambda: bare_op(x, -1, 32, E4M3),
                "kernel behind register_kernel": lambda: op(x, -1, 32, E4M3),
                "the same by .format": lambda: op.format(x, -1, 32, "fp8_e4m3"),
                "aten_mx.quantize_mx": lambda: aten_mx.quantize_mx(x),
            }
        )
    finally:
        handle.unregister()
    base = times["kernel as an op, no validation"]
    print(f"{'call, float32 ' + str(SHAPE):<32}{'us':>8}{'over bare':>12}{'ratio':>8}")
    for name, value in times.items():
        print(f"{name:<32}{value:8.2f}{value - base:12.2f}{value / base:8.2f}")
    overhead = times["kernel behind register_kernel"] - base
    language = "Python" if dispatch.validates_in_python() else "C++"
    limit = LIMITS[language]
    print(f"validation in {language} and hook: {overhead:.2f} us per call, at most {limit}")
    return int(args.check and overhead > limit)


if __name__ == "__main__":
    run(main)
