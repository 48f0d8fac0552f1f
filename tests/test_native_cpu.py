"""The native CPU kernel gives the emulated bytes, on every instruction set and thread count."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from against_emulated import compare_dequantize, compare_quantize, numbers
from sample_calls import DEQUANTIZE, MODES, QUANTIZE, REAL_DTYPES
from support import run_python, run_tests_of_the_contract
from torch import Tensor

import aten_mx
from aten_mx.backends import cpu
from aten_mx.formats import FORMATS

CAPABILITIES = ("default", "avx2", "avx512")
BLOCK_SIZES = (1, 2, 3, 5, 6, 16, 32, 64, 96, 128, 1024)


check_quantize = functools.partial(compare_quantize, QUANTIZE.format)


def check_dequantize(
    payload: Tensor, scale: Tensor, dim: int, block_size: int, fmt: str, swizzle: int = 0
) -> None:
    for dtype in REAL_DTYPES:
        args = (payload, scale, dim, block_size, fmt, dtype)
        compare_dequantize(DEQUANTIZE.format, *args, swizzle=swizzle)


def check_formats_and_modes() -> None:
    inputs = [*numbers(64), torch.randn(64, 128)]
    for values, dtype, fmt in itertools.product(inputs, REAL_DTYPES, FORMATS):
        x = values.to(dtype)
        for mode in MODES:
            check_quantize(x, -1, 32, fmt, mode)
            check_quantize(x, 0, 32, fmt, mode)
        check_quantize(x.t(), 0, 32, fmt, 2)
        check_quantize(x.t(), 1, 32, fmt, 3)


def check_all_16_bit_patterns() -> None:
    """Every bfloat16 and float16 as the largest magnitude of a block, and all below it."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    random = torch.Generator().manual_seed(0)
    below = torch.randint(0, 3000, (2**16, 31), generator=random, dtype=torch.int16)
    for dtype, fmt in itertools.product((torch.bfloat16, torch.float16), FORMATS):
        block = torch.cat((every[:, None], every[:, None] - below), 1).view(dtype)
        for mode in MODES:
            check_quantize(block, -1, 32, fmt, mode)
            check_quantize(block.to(torch.float32), -1, 32, fmt, mode)


def check_all_codes_and_scales() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    payload = every.repeat(256, 1)
    for fmt in FORMATS.values():
        size = 256 * fmt.codes_per_byte
        for block_size in (2, 32, size):
            scale = every[:, None].repeat(1, size // block_size).view(torch.float8_e8m0fnu)
            check_dequantize(payload.view(fmt.payload_dtype), scale, -1, block_size, fmt.name)


def check_layouts() -> None:
    for fmt, dtype in itertools.product(FORMATS.values(), REAL_DTYPES):
        for block_size in BLOCK_SIZES:
            if block_size % fmt.codes_per_byte:
                continue
            x = torch.randn(5, 6 * block_size, 3).to(dtype)
            y = x.transpose(1, 2).contiguous()
            check_quantize(x.transpose(1, 2), 2, block_size, fmt.name, 3)
            check_quantize(x.transpose(0, 1), 0, block_size, fmt.name, 1)
            check_quantize(y[:, ::2], -1, block_size, fmt.name, 2)
            check_quantize(y[..., block_size : 3 * block_size], -1, block_size, fmt.name, 2)
            payload, scale = check_quantize(x, 1, block_size, fmt.name, 0)
            check_dequantize(payload, scale, 1, block_size, fmt.name)
            check_dequantize(payload.contiguous(), scale, 1, block_size, fmt.name)
        for shape, dim in (
            ((0, 64), 1),
            ((4, 0), 1),
            ((0, 32), 0),
            ((64, 0), 0),
            ((2, 0, 64), 2),
            ((64, 130), 0),
            ((96, 200), 0),
            ((288, 300), 0),  # more than a tile of every kind, and its edges
            ((2, 288, 5, 290), 1),
            ((3, 64, 70), 1),
            ((64, 3, 5, 2), 0),
            ((128, 1), 0),
            ((300, 32 * 70), 1),
        ):
            check_quantize(torch.randn(shape).to(dtype), dim, 32, fmt.name, 1)
        # Streaming stores, the last tile half full.
        check_quantize(torch.randn(2112, 2100).to(dtype), 0, 32, fmt.name, 3)
        column, row = torch.randn(64, 1).to(dtype), torch.randn(1, 64).to(dtype)
        for x, dim in itertools.product((column.expand(64, 64), row.expand(70, 64)), (0, 1)):
            if x.shape[dim] % 32 == 0:
                check_quantize(x, dim, 32, fmt.name, 0)
        for shape in ((5, 64), (129, 160), (3, 130, 96), (2, 256, 128)):
            rows = torch.randn(shape).to(dtype)
            for x in (rows, rows.mT.contiguous().mT):
                payload, scale = check_quantize(x, -1, 32, fmt.name, 0, swizzle=1)
                check_dequantize(payload, scale, -1, 32, fmt.name, swizzle=1)


CHECKS = {
    function.__name__: function
    for function in (
        check_formats_and_modes,
        check_all_16_bit_patterns,
        check_all_codes_and_scales,
        check_layouts,
    )
}


def has_capability(name: str) -> bool:
    best = torch.backends.cpu.get_cpu_capability().lower()
    return best not in CAPABILITIES or CAPABILITIES.index(name) <= CAPABILITIES.index(best)


# Each instruction set, thread count and FTZ setting, and not their product.
@pytest.mark.proves("native CPU")
@pytest.mark.parametrize(
    ("capability", "threads", "flush"),
    [("default", 1, False), ("avx2", 2, True), ("avx512", 1, True), ("avx512", 2, False)],
)
@pytest.mark.parametrize("check", CHECKS)
def test_bytes(
    native_build: dict[str, str], capability: str, threads: int, flush: bool, check: str
) -> None:
    if not has_capability(capability):
        pytest.skip(f"this machine has no {capability}")
    # Passive: other tests need the cores, and waiting threads must not spin.
    environment = {
        **os.environ,
        **native_build,
        "ATEN_CPU_CAPABILITY": capability,
        "OMP_WAIT_POLICY": "passive",
    }
    arguments = [check, str(threads), str(int(flush)), capability]
    result = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


LARGE = """
import torch
from aten_mx import emulated

# Offsets beyond 2^31. All zeros, whose untouched pages take no memory, but for one row of numbers.
rows, columns = (1 << 31) // 4096 + 3, 4096
row = torch.randn(1, columns).to(torch.bfloat16)
for dim in (1, 0):
    shape = (rows, columns) if dim else (columns, rows)
    x = torch.zeros(shape, dtype=torch.bfloat16)
    blocked = rows // 32 * 32
    if dim:
        x[-1] = row
        output, scale = torch.ops.aten_mx.quantize_mx(x, 1, 32, torch.float8_e4m3fn)
        got = output.view(torch.uint8)[-1], scale.view(torch.uint8)[-1]
        assert not output.view(torch.uint8)[-2].any()
    else:
        x = x[:, :blocked].t()  # 32-row blocks of a strided tensor: offsets of the input too
        x[-32:, -1] = row[0, :32]
        output, scale = torch.ops.aten_mx.quantize_mx(x, 0, 32, torch.float8_e4m3fn)
        got = output.view(torch.uint8)[-32:, -1], scale.view(torch.uint8)[-1:, -1]
        row = row[:, :32]
    want = emulated.quantize_mx(row, 1, 32, "fp8_e4m3")
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w.view(torch.uint8)[0])
    del x, output, scale
print("same")
"""
LARGE_MEMORY = 9 << 30


@pytest.mark.slow  # and large: 9 GiB
def test_more_than_2_to_the_31_elements(native_build: dict[str, str]) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    # With the page cache, which gives way.
    memory = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    if memory < LARGE_MEMORY:
        pytest.skip(f"needs {LARGE_MEMORY >> 30} GiB of free memory, there are {memory >> 30}")
    assert run_python(LARGE, **native_build) == "same\n"


PEAK = """
import ctypes
from pathlib import Path
import torch
import aten_mx

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

def beside_the_outputs(call):
    call()  # what stays, such as threads
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    outputs = call()
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return status("VmHWM") - before - sum(output.nbytes for output in outputs)

quantize, dequantize = torch.ops.aten_mx.quantize_mx.format, torch.ops.aten_mx.dequantize_mx.format
for dtype in (torch.float32, torch.bfloat16):
    x = torch.randn(2048, 2048).to(dtype)
    strided = x.view(32, 64, 2048).permute(2, 0, 1)
    for fmt in ("fp8_e4m3", "fp4_e2m1", "int8"):
        for source, dim in ((x, -1), (x, 0), (strided, 2), (strided, 0), (x[::2, 1024:], 0)):
            extra = beside_the_outputs(lambda: quantize(source, dim, 32, fmt))
            assert extra < 1 << 20, ("quantize", dtype, fmt, source.stride(), dim, extra)
        payload, scale = quantize(x, 0, 32, fmt)
        extra = beside_the_outputs(lambda: dequantize(payload, scale, 0, 32, fmt, dtype))
        assert extra < 1 << 20, ("dequantize", dtype, fmt, extra)
print("within")
"""


def test_no_memory_beside_the_outputs(native_build: dict[str, str]) -> None:
    assert run_python(PEAK, **native_build) == "within\n"


@pytest.mark.parametrize(
    "selection",
    [
        "test_errors.py test_errors_order.py",
        "test_cases.py",
        "test_transforms.py",
        pytest.param("test_alias.py", marks=pytest.mark.slow),
        pytest.param("test_torchao_switch.py -k gives", marks=pytest.mark.slow),
    ],
)
def test_the_contract_on_the_native_kernel(native_build: dict[str, str], selection: str) -> None:
    """The tests of the emulated kernel; of the errors too, whose texts C++ has for itself."""
    run_tests_of_the_contract(selection, **native_build, ATEN_MX_TEST_CPU="require")


def main() -> None:
    """One check, in the process that :func:`test_bytes` starts."""
    check, threads, flush, capability = sys.argv[1:]
    cpu.load()
    assert torch.backends.cpu.get_cpu_capability().lower() in (capability, "no avx")
    kernels = [info for info in aten_mx.kernels() if info.dispatch_key == "CPU"]
    assert len(kernels) == 4
    assert all(info.kernel.startswith("native CPU kernel (") for info in kernels)
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    assert torch.set_flush_denormal(bool(int(flush))) or flush == "0"
    CHECKS[check]()


if __name__ == "__main__":
    main()
