"""Strides in and out, negative views, threads, swizzled scales, sizes of zero and huge offsets."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from cases import DTYPES, PAYLOAD_DTYPES, SCALAR_TYPES, to_bits, to_payload, to_tensor
from oracle import FLOOR, FORMATS, Array, decode_float, quantize_values, swizzle_scale
from support import case
from torch import Tensor
from under_test import DEVICE, cpu_alone

import aten_mx  # noqa: F401  (registers the ops)

pytestmark = pytest.mark.contract

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx

BLOCK_SIZE = 32


def random_bits(*shape: int, seed: int = 0) -> Array:
    """float32 bits of either sign within a dozen binades, with a few zeros, NaNs and subnormals."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, shape, np.uint32)
    bits = bits & 0x807FFFFF | rng.integers(120, 132, shape, np.uint32) << 23
    rare = rng.integers(0, 400, shape)
    for number, pattern in enumerate((0x00000000, 0x80000000, 0x7FC00000, 0x000FFFFF)):
        bits[rare == number] = pattern
    return bits


def dense_strides(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """specification.md, 5: the strides of ``torch.empty(moved_shape).movedim(-1, dim)``."""
    moved = [size for d, size in enumerate(shape) if d != dim % len(shape)] + [shape[dim]]
    return torch.empty(moved, device="meta").movedim(-1, dim).stride()


def check_quantize(x: Tensor, dim: int, fmt: str) -> tuple[Tensor, Tensor]:
    """Bytes as of a contiguous copy, and strides by the layout rule whatever those of ``x``."""
    value = decode_float(to_bits(x.resolve_neg().contiguous()), "f32")
    codes, scale_bytes = quantize_values(value, BLOCK_SIZE, fmt, FLOOR, axis=dim)
    output, scale = quantize_mx.format(x, dim, BLOCK_SIZE, fmt)
    results = [(output, scale)]
    if fmt in SCALAR_TYPES:
        results.append(quantize_mx(x, dim, BLOCK_SIZE, SCALAR_TYPES[fmt]))
    for result, result_scale in results:
        np.testing.assert_array_equal(to_bits(result), to_payload(codes, fmt, dim))
        np.testing.assert_array_equal(to_bits(result_scale), scale_bytes)
        assert result.stride() == dense_strides(tuple(result.shape), dim)
        assert result_scale.stride() == dense_strides(tuple(result_scale.shape), dim)
    return output, scale


# vllm#49092: a column slice was read as if it were contiguous, without an error.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, 32:96],
    "last_columns": lambda x: x[:, -64:],
    "rows": lambda x: x[::2],
    "last_rows": lambda x: x[-32:],
    "every_third_column": lambda x: x[:, 1::3],
    "expanded_row": lambda x: x[:1].expand(64, 192),
    "expanded_column": lambda x: x[:, 1:2].expand(64, 64),
    "expanded_transposed": lambda x: x[3:4].expand(32, 192).t(),
    "overlapping": lambda x: x.as_strided((64, 96), (1, 2), 5),
    "windows": lambda x: x.as_strided((765, 64), (16, 1)),
    "one_row": lambda x: x[3, 64:128],
    "one_column": lambda x: x[:, 7],
    "permuted_3d": lambda x: x.view(32, 2, 192).permute(2, 0, 1),
    "sliced_3d": lambda x: x.view(2, 32, 192)[:, :, 64:128].transpose(0, 2),
    "permuted_4d": lambda x: x.view(2, 32, 3, 64).permute(3, 2, 0, 1),
    "size_one_dims": lambda x: x.view(1, 64, 1, 192),
    "negative": lambda x: torch._neg_view(x[:, ::2]),
    "negative_transposed": lambda x: torch._neg_view(x[:, ::2]).t(),
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_strides(fmt: str) -> None:
    """Every dimension of every view that blocks of 32 divide, counted from either end."""
    for name, view in VIEWS.items():
        x = view(to_tensor(random_bits(64, 192), torch.float32))
        dims = [dim for dim, size in enumerate(x.shape) if size % BLOCK_SIZE == 0]
        assert dims, name
        for dim in dims:
            with case(name, dim):
                check_quantize(x, dim, fmt)
                check_quantize(x, dim - x.dim(), fmt)


def test_negative_views_are_lazy() -> None:
    """The views above do carry the negative bit, so the test means what it says."""
    assert VIEWS["negative"](torch.zeros(64, 192)).is_neg()


def spread(tensor: Tensor) -> Tensor:
    """The same bytes at every second place of a transposed buffer full of 0xFF."""
    shape = [2 * size for size in reversed(tensor.shape)]
    buffer = torch.full(shape, 0xFF, dtype=torch.uint8, device=tensor.device)
    view = buffer[(slice(1, None, 2),) * tensor.dim()].permute(*reversed(range(tensor.dim())))
    view.copy_(tensor.view(torch.uint8))
    return view.view(tensor.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_strides(fmt: str, dtype: str) -> None:
    """Payload and scale each strided or not: one result, dense by the layout rule."""
    x = to_tensor(random_bits(64, 3, 96), torch.float32)
    for dim in (0, 2, -1):
        q, scale = quantize_mx.format(x, dim, BLOCK_SIZE, fmt)
        expected = dequantize_mx.format(
            q.contiguous(), scale.contiguous(), dim, BLOCK_SIZE, fmt, DTYPES[dtype]
        )
        assert expected.stride() == dense_strides(tuple(x.shape), dim)
        for payload, scales in ((spread(q), scale), (q, spread(scale)), (spread(q), spread(scale))):
            y = dequantize_mx.format(payload, scales, dim, BLOCK_SIZE, fmt, DTYPES[dtype])
            np.testing.assert_array_equal(to_bits(y), to_bits(expected))
            assert y.stride() == expected.stride()


def test_dequantize_expanded_scale() -> None:
    """One scale for all blocks, by a stride of zero."""
    q = to_tensor(np.arange(256, dtype=np.uint8).reshape(4, 64), torch.int8)
    scale = to_tensor(np.array([[130]], np.uint8), torch.float8_e8m0fnu).expand(4, 2)
    y = dequantize_mx(q, scale, 1, BLOCK_SIZE, torch.float32)
    np.testing.assert_array_equal(y.cpu(), np.arange(256).astype(np.int8).reshape(4, 64) / 8)


# --- threads --------------------------------------------------------------------------------------


THREADS_ARE_THE_CPUS = cpu_alone("the number of threads is a setting of the CPU")


@pytest.fixture(params=[1, pytest.param(2, marks=THREADS_ARE_THE_CPUS)])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Number of intra-op threads, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("fmt", FORMATS)
def test_threads(fmt: str) -> None:
    """Large enough that kernels split the work, with an odd number of rows."""
    x = to_tensor(random_bits(1023, 512), torch.float32)
    check_quantize(x, 1, fmt)
    q, scale = check_quantize(x.t(), 0, fmt)
    back = dequantize_mx.format(q, scale, 0, BLOCK_SIZE, fmt, torch.float32)
    head = dequantize_mx.format(q[:, -3:], scale[:, -3:], 0, BLOCK_SIZE, fmt, torch.float32)
    np.testing.assert_array_equal(to_bits(back[:, -3:]), to_bits(head))


# --- swizzled scales ------------------------------------------------------------------------------

SWIZZLED_SHAPES = [
    (1, 32),
    (5, 64),
    (31, 96),
    (33, 128),
    (127, 160),
    (128, 128),
    (129, 32),
    (130, 160),
    (2, 3, 96),
    (2, 2, 130, 288),
    (0, 64),
    (3, 0),
    (2, 0, 32),
]


def poison_allocator(size: int) -> None:
    """Leave 0xFF, NaN as a scale, in memory that the allocator is about to hand out again."""
    buffers = [torch.full((size,), 0xFF, dtype=torch.uint8, device=DEVICE) for _ in range(16)]
    del buffers


@pytest.mark.parametrize("fmt", FORMATS)
def test_swizzled_scale(fmt: str) -> None:
    """vllm#38148: the padding of the tiles is 0, and the payload is the plain one's."""
    for shape in SWIZZLED_SHAPES:
        with case(shape):
            check_swizzled_scale(shape, fmt)


def check_swizzled_scale(shape: tuple[int, ...], fmt: str) -> None:
    x = to_tensor(random_bits(*shape), torch.float32)
    value = decode_float(to_bits(x), "f32")
    codes, scale_bytes = quantize_values(value, BLOCK_SIZE, fmt, FLOOR)
    expected = swizzle_scale(scale_bytes)
    assert expected.shape == (*shape[:-2], 32 * -(-shape[-2] // 128), 16 * -(-shape[-1] // 128))

    poison_allocator(max(expected.size, 1))
    output, scale = quantize_mx.format(x, -1, BLOCK_SIZE, fmt, swizzle_type=1)
    assert scale.dtype == torch.float8_e8m0fnu
    assert scale.is_contiguous()
    assert tuple(scale.shape) == expected.shape
    np.testing.assert_array_equal(to_bits(scale), expected)
    np.testing.assert_array_equal(to_bits(output), to_payload(codes, fmt))

    # triton#10190: padding is never read; NaN bytes there change nothing.
    plain = to_tensor(scale_bytes, torch.float8_e8m0fnu)
    padded = to_tensor(swizzle_scale(scale_bytes, padding=0xFF), torch.float8_e8m0fnu)
    y = dequantize_mx.format(output, plain, -1, BLOCK_SIZE, fmt, torch.bfloat16)
    for swizzled in (scale, padded, spread(padded)):
        y_swizzled = dequantize_mx.format(
            output, swizzled, -1, BLOCK_SIZE, fmt, torch.bfloat16, swizzle_type=1
        )
        np.testing.assert_array_equal(to_bits(y_swizzled), to_bits(y))


# --- sizes ----------------------------------------------------------------------------------------


EMPTY_SHAPES = {
    (0,): (0,),
    (0, 32): (0, 1),
    (4, 0): (1,),
    (64, 0): (0,),
    (2, 0, 64): (1, 2),
    (2, 64, 0): (1,),
}
"""Shapes, and the dimensions to block."""


def test_empty() -> None:
    """Outputs of the right shape, dtype and stride, and back."""
    for fmt, (shape, dims) in itertools.product(FORMATS, EMPTY_SHAPES.items()):
        for dim in dims:
            with case(fmt, shape, dim):
                check_empty(shape, dim, fmt)


def check_empty(shape: tuple[int, ...], dim: int, fmt: str) -> None:
    q, scale = check_quantize(torch.empty(shape, device=DEVICE), dim, fmt)
    assert scale.shape[dim] == shape[dim] // BLOCK_SIZE
    y = dequantize_mx.format(q, scale, dim, BLOCK_SIZE, fmt, torch.float16)
    assert tuple(y.shape) == shape
    assert y.dtype == torch.float16
    assert y.stride() == dense_strides(shape, dim)
    assert q.dtype == PAYLOAD_DTYPES[fmt]


@pytest.mark.parametrize("dim", [0, 1])
def test_offsets_beyond_32_bits(dim: int) -> None:
    """pytorch/ao#4201: two rows 2^31 + 8 elements apart. The memory between is never touched."""
    far = 2**31 + 8
    base = torch.empty(far + 64, dtype=torch.bfloat16, device=DEVICE)
    near = torch.arange(-64, 64, dtype=torch.bfloat16, device=DEVICE).view(2, 64)
    x = base.as_strided((2, 64), (far, 1)).copy_(near)
    x, near = (x, near) if dim else (x.t(), near.t())
    for actual, expected in zip(
        quantize_mx(x, dim, BLOCK_SIZE, torch.int8),
        quantize_mx(near.clone(), dim, BLOCK_SIZE, torch.int8),
        strict=True,
    ):
        np.testing.assert_array_equal(to_bits(actual), to_bits(expected))
