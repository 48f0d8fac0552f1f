"""The Triton kernels as core would have them, in Triton's interpreter: a process of its own.

    TRITON_INTERPRET=1 python -m native_functions_patch.runtime_triton LIBRARY

The registry that calls them on a GPU is passed by: its conditions and kernels are called as it
would call them.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch

import aten_mx  # noqa: F401  (the ops to compare with)
from aten_mx.backends.triton.impl import target_of
from native_functions_patch.report import Report
from native_functions_patch.samples import calls, same

_EVERY = 17  # no divisor of what the calls are a product of: each kind comes


def check_bytes(core: Any) -> str:
    """Where a condition says yes, the kernel gives the operator's bytes."""
    core._target = lambda device: target_of("interpreter", "")
    torch.accelerator.device_index = lambda index: nullcontext()  # type: ignore[assignment]
    count = 0
    for name, (x, dim, block_size, element, *mode), kwargs in [*calls()][1::_EVERY]:
        suffix, fmt = (".format", (element,)) if isinstance(element, str) else ("", ())
        condition, quantize = core._OVERRIDES[f"quantize_mx{suffix}"]
        args = (x, dim, block_size, element, *mode)
        assert condition(*args, **kwargs) is (x.numel() > 0), name
        if x.numel() == 0:
            continue
        expected = torch.ops.aten.quantize_mx(*args, **kwargs)
        assert same(quantize(*args, **kwargs), expected), f"quantize_mx {name}"
        condition, dequantize = core._OVERRIDES[f"dequantize_mx{suffix}"]
        args = (*expected, dim, block_size, *fmt, x.dtype)
        assert condition(*args, **kwargs), name
        expected = torch.ops.aten.dequantize_mx(*args, **kwargs)
        assert same(dequantize(*args, **kwargs), expected), f"dequantize_mx {name}"
        count += 2
    return f"{count} calls"


def main(library: str) -> int:
    """Load the library, run the check, and return the exit code."""
    torch.ops.load_library(library)
    from torch._native.ops.quantize_mx import triton_impl

    report = Report()
    report.step("Triton, interpreted", lambda: check_bytes(triton_impl))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
