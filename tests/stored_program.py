"""An exported program that every later version must load and run.

``python tests/stored_program.py`` wrote ``data/stored_program_0.1.pt2``: all four overloads with
all their arguments, the number of blocks dynamic along both dimensions. It is never written again;
a version that adds an overload stores another program beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import aten_mx  # noqa: F401  # defines the ops

STORED = Path(__file__).parent / "data" / "stored_program_0.1.pt2"
quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx


class AllOverloads(torch.nn.Module):
    """Every overload, every argument, no two alike."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x`` along both dimensions; as FP8, FP4 and FP6; and back."""
        output, scale = quantize_mx(x, -1, 32, torch.float8_e4m3fn, 3)
        packed, shared = quantize_mx.format(x, 0, 16, "fp4_e2m1", 2)
        codes, swizzled = quantize_mx.format(x, 1, 32, "fp6_e3m2", 1, swizzle_type=1)
        back = dequantize_mx(output, scale, -1, 32, torch.bfloat16)
        wide = dequantize_mx.format(packed, shared, 0, 16, "fp4_e2m1", torch.float16)
        args = (codes, swizzled, 1, 32, "fp6_e3m2", torch.float32)
        return (
            *(output, scale, packed, shared, codes, swizzled, back, wide),
            dequantize_mx.format(*args, swizzle_type=1),
        )


def main() -> None:
    """Write the program, once."""
    if STORED.exists():
        sys.exit(f"{STORED} stays as it is")
    sizes = {0: 16 * torch.export.Dim("rows", min=2), 1: 32 * torch.export.Dim("blocks", min=2)}
    program = torch.export.export(AllOverloads(), (torch.ones(32, 64),), dynamic_shapes=(sizes,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine it was written on
    STORED.parent.mkdir(exist_ok=True)
    torch.export.save(program, STORED)


if __name__ == "__main__":
    main()
