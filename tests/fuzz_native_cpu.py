"""Fuzzes the native CPU kernel under AddressSanitizer and UBSan.

    python tests/fuzz_native_cpu.py --minutes 10

Random shapes, strides, block sizes, formats, modes, dtypes and bit patterns; each call's bytes are
held against the emulated kernel's. The library is built apart, with the sanitizers, and any report
of theirs ends the process. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from typing import NamedTuple

import torch
from torch import Tensor

import aten_mx
from aten_mx import emulated
from aten_mx.backends import cpu
from aten_mx.formats import FORMATS, ElementFormat

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
CAPABILITIES = ("default", "avx2", "avx512")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class Call(NamedTuple):
    """What a quantization is called with, but for the tensor and the dtype."""

    fmt: ElementFormat
    shape: list[int]
    dim: int
    block_size: int
    mode: int
    swizzle: int


def random_call(rng: random.Random) -> Call:
    """Mostly what models use, with all that is legal among it."""
    fmt = rng.choice(list(FORMATS.values()))
    block_size = rng.choice((32, 32, 32, 16, 64, 128, rng.randrange(1, 80)))
    block_size *= fmt.codes_per_byte if block_size % fmt.codes_per_byte else 1
    shape = [rng.choice((0, 1, 2, 3, 5, 17, 33, 64, 70)) for _ in range(rng.randrange(1, 4))]
    dim = rng.randrange(len(shape))
    shape[dim] = block_size * rng.choice((0, 1, 1, 2, 3, 4, 5, 9))
    can_swizzle = dim == len(shape) - 1 > 0 and block_size == 32
    return Call(
        fmt,
        shape,
        dim - rng.choice((0, len(shape))),
        block_size,
        rng.randrange(len(aten_mx.ScaleCalculationMode)),
        int(can_swizzle and rng.random() < 0.3),
    )


def random_values(rng: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Any bit pattern, or numbers of any size."""
    if rng.random() < 0.5:
        bits = torch.randint(-(1 << 31), 1 << 31, shape)
        return bits.to(UNSIGNED[dtype.itemsize]).view(dtype)
    return torch.ldexp(torch.randn(shape), torch.randint(-140, 120, shape).float()).to(dtype)


def any_strides(rng: random.Random, x: Tensor) -> Tensor:
    """The same values laid out in some other way, with gaps and with room around them."""
    order = rng.sample(range(x.dim()), x.dim())
    steps = [rng.choice((1, 1, 1, 2, 3)) for _ in order]
    offsets = [rng.randrange(3) for _ in order]
    room = [x.shape[d] * s + o for d, s, o in zip(order, steps, offsets, strict=True)]
    bits = x.view(UNSIGNED[x.element_size()])
    larger = torch.randint(0, 100, room).to(bits.dtype)
    cut = larger[tuple(slice(o, None, s) for o, s in zip(offsets, steps, strict=True))]
    view = cut.permute(*(order.index(d) for d in range(x.dim())))
    view = view[tuple(slice(size) for size in x.shape)]
    view.copy_(bits)
    return view.view(x.dtype)


def same(got: Tensor, want: Tensor) -> bool:
    """Equal to the byte and the stride."""
    bits = UNSIGNED[got.element_size()]
    return got.stride() == want.stride() and torch.equal(got.view(bits), want.view(bits))


def check(rng: random.Random) -> int:
    """One quantization and one dequantization.

    Returns:
        The number of elements.
    """
    call, dtype = random_call(rng), rng.choice(DTYPES)
    x = random_values(rng, call.shape, dtype)
    torch.set_flush_denormal(rng.random() < 0.3)
    if rng.random() < 0.6:
        x = any_strides(rng, x)
    args = (call.dim, call.block_size, call.fmt.name)
    swizzle = {"swizzle_type": call.swizzle}
    got = torch.ops.aten_mx.quantize_mx.format(x, *args, call.mode, **swizzle)
    want = emulated.quantize_mx(x, *args, call.mode, **swizzle)
    assert all(same(g, w) for g, w in zip(got, want, strict=True)), (call, dtype, x.stride())

    payload, scale = want
    if call.fmt.bits == 8 and rng.random() < 0.5:
        payload = torch.randint(0, 256, payload.shape).to(torch.uint8).view(payload.dtype)
    if rng.random() < 0.6:
        payload, scale = any_strides(rng, payload), any_strides(rng, scale)
    dtype = rng.choice(DTYPES)
    back = torch.ops.aten_mx.dequantize_mx.format(payload, scale, *args, dtype, **swizzle)
    expected = emulated.dequantize_mx(payload, scale, *args, dtype, **swizzle)
    assert same(back, expected), (call, dtype, payload.stride(), scale.stride())
    return x.numel()


def work(seconds: float, seed: int) -> None:
    """Check until the time is over; then say how much was seen."""
    cpu.load()
    assert all("csrc" in k.source for k in aten_mx.kernels() if k.dispatch_key == "CPU")
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pairs = elements = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        elements += check(rng)
        pairs += 1
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{capability}: {2 * pairs:,} calls, {2 * elements:,} elements, no difference")


def start(minutes: float, seed: int) -> int:
    """Build with the sanitizers, then run one process per instruction set.

    Returns:
        1 if one of them failed, else 0.
    """
    environment = {**os.environ, "ATEN_MX_CXXFLAGS": SANITIZERS, "ATEN_MX_CPU": "off"}
    subprocess.run([sys.executable, "-m", "aten_mx", "build"], env=environment, check=True)
    # Python isn't built with them, so their libraries must come before all others.
    environment["LD_PRELOAD"] = " ".join(map(_library, ("libasan.so", "libubsan.so")))
    # Leaks and mismatches that Python and PyTorch have of their own.
    environment["ASAN_OPTIONS"] = "detect_leaks=0:alloc_dealloc_mismatch=0"
    codes = []
    for capability in CAPABILITIES:
        environment["ATEN_CPU_CAPABILITY"] = capability
        arguments = (str(minutes * 60 / len(CAPABILITIES)), str(seed))
        command = [sys.executable, __file__, "--work", *arguments]
        codes.append(subprocess.run(command, env=environment, check=False).returncode)
    return int(any(codes))


def _library(name: str) -> str:
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(float(sys.argv[2]), int(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--minutes", type=float, default=10)
        parser.add_argument("--seed", type=int, default=0)
        options = parser.parse_args()
        raise SystemExit(start(options.minutes, options.seed))
