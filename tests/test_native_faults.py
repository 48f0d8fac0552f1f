"""What the native CPU kernel refuses, and what it must take: sizes, ranks, deterministic mode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_emulated import assert_same
from sample_calls import DEQUANTIZE, QUANTIZE, REAL_DTYPES, bytes_of
from support import run_tests_of_the_contract
from torch import Tensor

from aten_mx.formats import FORMATS, ElementFormat

E8M0 = torch.float8_e8m0fnu
FLOAT32, HALF = torch.float32, torch.float16
TOO_BIG = "{op}: the {name} for self of shape {shape} would have more than 2^63 - 1 bytes"
on_native = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten_mx::quantize_mx", "CPU"),
    reason="run by test_in_a_process_with_the_kernel",
)


def test_in_a_process_with_the_kernel(native_build: dict[str, str]) -> None:
    run_tests_of_the_contract(f"{__file__} -k on_the_kernel", **native_build)


def expanded(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of any size on one byte of memory or a few."""
    return torch.zeros(16, dtype=torch.uint8).view(dtype)[:1].as_strided(shape, [0] * len(shape))


def quantized(*shape: int, block_size: int = 32, fmt: str = "int8", **swizzle: int) -> Any:
    x = expanded(torch.bfloat16, *shape)
    return lambda: QUANTIZE.format(x, -1, block_size, fmt, 0, **swizzle)


def dequantized(
    payload: tuple[int, ...],
    scale: tuple[int, ...],
    fmt: str,
    dtype: torch.dtype,
    block_size: int = 32,
) -> Callable[[], Tensor]:
    codes = expanded(FORMATS[fmt].payload_dtype, *payload)
    args = (codes, expanded(E8M0, *scale), -1, block_size, fmt, dtype)
    return lambda: DEQUANTIZE.format(*args)


@on_native
def test_an_output_above_2_63_bytes_on_the_kernel() -> None:
    half, quarter = 2**62, 2**61
    tiles = {"swizzle_type": 1}
    big: tuple[tuple[Callable[[], Any], str, str, list[int]], ...] = (
        # A row of 32 values has tiles of 512 bytes.
        (quantized(2**55, 1, 32, **tiles), "quantize_mx", "scale", [2**55, 1, 32]),
        (quantized(2**54, 2, 32, **tiles), "quantize_mx", "scale", [2**54, 2, 32]),
        (dequantized((half,), (half,), "int8", HALF, 1), "dequantize_mx", "output", [half]),
        (
            dequantized((quarter,), (quarter,), "int8", FLOAT32, 1),
            "dequantize_mx",
            "output",
            [quarter],
        ),
        (dequantized((half,), (half,), "fp4_e2m1", HALF, 2), "dequantize_mx", "output", [half]),
        (
            dequantized((2**63 - 1,), (1,), "fp4_e2m1", HALF, 2),
            "dequantize_mx",
            "output",
            [2**63 - 1],
        ),
        (dequantized((0, half), (0, 1), "fp4_e2m1", HALF, 2), "dequantize_mx", "output", [0, half]),
    )
    for call, op, name, shape in big:
        text = TOO_BIG.format(op=op, name=name, shape=shape)
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            call()


@on_native
def test_an_output_above_the_memory_on_the_kernel() -> None:
    """2^63 - 1 bytes or fewer are the allocator's to refuse, and empty ones have none."""
    for call in (
        quantized(2**53, 1, 32, swizzle_type=1),
        quantized(2**57, 32),
        dequantized((2**60, 1), (2**60, 1), "int8", FLOAT32, 1),
    ):
        with pytest.raises(RuntimeError, match="memory"):
            call()
    output, scale = quantized(2**57, 0, 32, swizzle_type=1)()
    assert output.numel() == scale.numel() == 0


@on_native
def test_other_faults_come_first_on_the_kernel() -> None:
    for call, text in (
        (quantized(2**55, 1, 33), "multiple of block_size"),
        (quantized(2**55, 1, 32, fmt="fp5", swizzle_type=1), "elem_format must be one of"),
        (dequantized((2**62,), (2**62 - 1,), "int8", HALF, 1), "scale must have shape"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def rows_of(tensor: Tensor, dim: int) -> Tensor:
    return bytes_of(tensor).movedim(dim, -1).flatten(0, -2)


@on_native
def test_any_rank_on_the_kernel() -> None:
    for rank, fmt in itertools.product((63, 64, 65, 70), FORMATS):
        for dim in (0, rank // 2, rank - 1):
            shape = [1] * rank
            shape[rank // 3] = 3
            shape[dim] = 64
            x = torch.randn(shape)
            output, scale = QUANTIZE.format(x, dim, 32, fmt)
            flat = QUANTIZE.format(x.movedim(dim, -1).flatten(0, -2), -1, 32, fmt)
            assert torch.equal(rows_of(output, dim), bytes_of(flat[0]))
            assert torch.equal(rows_of(scale, dim), bytes_of(flat[1]))
            values = DEQUANTIZE.format(output, scale, dim, 32, fmt, FLOAT32)
            assert values.shape == x.shape
            again = DEQUANTIZE.format(*flat, -1, 32, fmt, FLOAT32)
            assert torch.equal(rows_of(values, dim), bytes_of(again))


def results(x: Tensor, dim: int, fmt: ElementFormat) -> list[Tensor]:
    """What both ops give for a format, by each overload."""
    swizzled = {"swizzle_type": 1 if dim == -1 else 0}
    output, scale = QUANTIZE.format(x, dim, 32, fmt.name, 3, **swizzled)
    values = [
        DEQUANTIZE.format(output, scale, dim, 32, fmt.name, dtype, **swizzled)
        for dtype in REAL_DTYPES
    ]
    if fmt.dtype is None:
        return [output, scale, *values]
    typed, scale_of_typed = QUANTIZE.default(x, dim, 32, fmt.dtype, 3)
    values += [DEQUANTIZE.default(typed, scale_of_typed, dim, 32, dtype) for dtype in REAL_DTYPES]
    return [output, scale, typed, scale_of_typed, *values]


@on_native
def test_deterministic_mode_on_the_kernel() -> None:
    """It fills new tensors, which PyTorch cannot do for float4_e2m1fn_x2."""
    x = torch.randn(3, 64, 64)
    for fmt, dim in itertools.product(FORMATS.values(), (-1, 1)):
        expected = results(x, dim, fmt)
        torch.use_deterministic_algorithms(True)
        try:
            got = results(x, dim, fmt)
        finally:
            torch.use_deterministic_algorithms(False)
        for tensor, want in zip(got, expected, strict=True):
            assert_same(tensor, want, (fmt.name, dim))
