"""What is known of targets: how large a program should be, which instructions there are.

Imports no Triton. Stands in ``native_functions_patch`` as it is here.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """Whether a float32 multiplication may take subnormals for zero. NVIDIA's and AMD's, as Triton
    compiles it, does not; no test says so of the others."""


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


def convert_ptx(element: dict[str, int], capability: int) -> str:
    """PTX that converts four float32 (FP4: eight) to a word of codes; empty where there is none.

    Source: PTX ISA, ``cvt``: e4m3x2 and e5m2x2 from sm_89, the others from sm_100 on. All round to
    nearest even and saturate; NaN becomes 0x7F in the two FP8 formats.
    """
    if element["SIGN_SHIFT"] == 0:
        return ""  # INT8 has none of these
    bits = 32 - element["SIGN_SHIFT"]
    if capability < (89 if bits == 8 else 100):
        return ""
    convert = f"cvt.rn.satfinite.e{element['EXPONENT_BITS']}m{element['MANTISSA']}x2.f32"
    if bits == 4:
        pairs = "".join(f"{convert} b{i}, ${i + 5}, ${i + 1}; " for i in range(4))
        return "{ .reg .b8 b<4>; " + pairs + "mov.b32 $0, {b0, b1, b2, b3}; }"
    pairs = f"{convert} low, $2, $1; {convert} high, $4, $3; "
    return "{ .reg .b16 low, high; " + pairs + "mov.b32 $0, {low, high}; }"
