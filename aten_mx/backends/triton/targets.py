"""What the kernels must know of a target, the size of a program and the instructions it has, and
of a format.

Imports no Triton. The file is part of the patch to PyTorch core as it is.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

BLOCK_SIZES = (16, 32, 64, 128)
"""Those that the kernels take."""


class Target(NamedTuple):
    """What a kernel is compiled for."""

    backend: str
    """Triton's name: ``cuda``, ``hip`` or ``xpu``; or ``interpreter``."""

    arch: int | str
    """Compute capability times ten, or AMD's name."""

    warp_size: int
    flushes: bool
    """Whether a float32 multiplication may flush subnormals. As Triton compiles it, NVIDIA's and
    AMD's do not. The others are not tested."""


class Tile(NamedTuple):
    """How many elements a program handles, and how many of them a thread."""

    elements: int
    thread_elements: int


# Chosen by shape alone: autotuning would stall the first call. A thread of 32 elements has 16-byte
# loads and stores of every dtype; small tensors get small programs, to fill the device.
TILES: dict[str, tuple[Tile, Tile]] = {
    # backend: (for large tensors, for small ones)
    "cuda": (Tile(4096, 32), Tile(1024, 32)),
    "hip": (Tile(8192, 32), Tile(2048, 32)),
    "xpu": (Tile(4096, 32), Tile(1024, 32)),
    "interpreter": (Tile(1 << 16, 32), Tile(1 << 12, 32)),  # time goes by the program
}
LARGE = 1 << 21


@functools.cache
def constants(fmt: Any) -> dict[str, int]:
    """The row ``fmt`` of the table of formats, by the kernels' names."""
    return {
        "MANTISSA": fmt.mantissa_bits,
        "EXPONENT_BITS": fmt.exponent_bits,
        "BIAS": fmt.bias,
        "EMAX": fmt.emax,
        "MAX_CODE": fmt.max_code,
        "INF_CODE": fmt.inf_code or 0,
        "NAN_CODE": fmt.nan_code,
        "SIGN_SHIFT": 0 if fmt.twos_complement else 32 - fmt.bits,
        "CODES_PER_BYTE": fmt.codes_per_byte,
    }


# PTX that converts two float32 numbers to codes: `cvt.rn.satfinite.` and this name. It rounds to
# nearest even and saturates; NaN becomes 0x7F in the two FP8 formats. The instruction belongs to an
# encoding, so the key is all of it, and an encoding without an entry takes the generic path.
# Source: PTX ISA, `cvt`.
_ENCODING = ("EXPONENT_BITS", "MANTISSA", "SIGN_SHIFT", "MAX_CODE", "INF_CODE", "NAN_CODE")
_CONVERSIONS: dict[tuple[int, ...], tuple[str, int]] = {
    # the encoding: (name, oldest compute capability times ten)
    (4, 3, 24, 0x7E, 0, 0x7F): ("e4m3x2", 89),
    (5, 2, 24, 0x7B, 0x7C, 0x7F): ("e5m2x2", 89),
    (2, 3, 26, 0x1F, 0, 0): ("e2m3x2", 100),
    (3, 2, 26, 0x1F, 0, 0): ("e3m2x2", 100),
    (2, 1, 28, 0x7, 0, 0): ("e2m1x2", 100),
}


def convert_ptx(element: dict[str, int], capability: int) -> str:
    """PTX that converts four float32 (FP4: eight) to a word of codes; empty where there is none."""
    encoding = tuple(element[name] for name in _ENCODING)
    name, oldest = _CONVERSIONS.get(encoding, ("", 0))
    if not name or capability < oldest:
        return ""
    convert = f"cvt.rn.satfinite.{name}.f32"
    if element["CODES_PER_BYTE"] == 2:
        pairs = "".join(f"{convert} b{i}, ${i + 5}, ${i + 1}; " for i in range(4))
        return "{ .reg .b8 b<4>; " + pairs + "mov.b32 $0, {b0, b1, b2, b3}; }"
    pairs = f"{convert} low, $2, $1; {convert} high, $4, $3; "
    return "{ .reg .b16 low, high; " + pairs + "mov.b32 $0, {low, high}; }"
