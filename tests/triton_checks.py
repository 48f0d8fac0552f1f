"""Checks of the Triton kernels in its interpreter; ``test_triton.py`` starts them in a process.

    TRITON_INTERPRET=1 python tests/triton_checks.py CHECK FLUSH [half]

``FLUSH`` is 1: the CPU flushes subnormals, and the kernels take the steps for such a target; 0: the
steps of NVIDIA's and AMD's GPUs. With ``half`` each of the two takes one half of the products.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from against_emulated import assert_same, compare_dequantize, compare_quantize, numbers
from cases import PAYLOAD_DTYPES
from patched_core import load_core
from sample_calls import LAYOUTS, MODES, REAL_DTYPES, SWIZZLE_LAYOUTS, every_second, make_input
from torch import Tensor

import aten_mx
from aten_mx import testing
from aten_mx.backends import triton as kernels
from aten_mx.backends.triton import impl
from aten_mx.backends.triton.targets import BLOCK_SIZES
from aten_mx.formats import FORMATS, ElementFormat
from aten_mx.meta import TensorSpec
from aten_mx.testing import golden, inputs
from native_functions_patch.samples import calls as core_calls

_POISON, _GUARD = 0xCD, 4096
_allocated: list[Tensor] = []


def poisoned(spec: TensorSpec, device: torch.device) -> Tensor:
    """As ``spec.empty``, in the midst of a larger buffer, every byte of it 0xCD."""
    meta = _empty(spec, "meta")
    size = meta.numel() * meta.element_size()
    buffer = torch.full((size + 2 * _GUARD,), _POISON, dtype=torch.uint8, device=device)
    _allocated.append(buffer)
    typed = buffer.view(spec.dtype)
    return typed.as_strided(meta.shape, meta.stride(), _GUARD // meta.element_size())


_empty = TensorSpec.empty


def check_guards() -> None:
    """Nothing outside the outputs has been written."""
    assert _allocated
    for buffer in _allocated:
        assert (buffer[:_GUARD] == _POISON).all()
        assert (buffer[-_GUARD:] == _POISON).all()
    _allocated.clear()


def guarded(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with its outputs in poisoned buffers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        TensorSpec.empty = poisoned  # type: ignore[method-assign]
        results = kernel(*args, **kwargs)
        TensorSpec.empty = _empty  # type: ignore[method-assign]
        check_guards()
        return results

    return call


check_quantize = functools.partial(compare_quantize, guarded(kernels.quantize_mx))
check_dequantize = functools.partial(compare_dequantize, guarded(kernels.dequantize_mx))


def part() -> slice:
    """Of a list of cases, those for this process."""
    return slice(int(sys.argv[2]), None, 2) if sys.argv[3:] == ["half"] else slice(None)


def shuffled(*lists: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The product of the lists in an order without a pattern, over and over."""
    product = [*itertools.product(*lists)]
    return itertools.cycle(random.Random(0).sample(product, len(product)))


def check_values() -> None:
    """Every format, mode, dim and dtype: any bits, any magnitude, subnormals, special blocks."""
    x = torch.cat(list(numbers(32)))
    for dtype, fmt, mode, dim in [*itertools.product(REAL_DTYPES, FORMATS, MODES, (-1, 0))][part()]:
        check_quantize(x.to(dtype), dim, 32, fmt, mode)


def check_golden() -> None:
    """The golden vectors, those of one format, mode and dtype as the rows of one tensor."""
    rows = defaultdict(list)
    for vector in golden.read_vectors():
        for mode in vector.modes or ("",):
            rows[vector.op, vector.elem_format, mode, vector.dtype].append(vector)
    for (op, fmt, mode, dtype), vectors in rows.items():
        values = torch.stack([vector.values for vector in vectors])
        codes = torch.stack([vector.codes for vector in vectors])
        scale = torch.tensor([[vector.scale] for vector in vectors], dtype=torch.uint8)
        if FORMATS[fmt].codes_per_byte == 2:
            codes = codes[:, ::2] | codes[:, 1::2] << 4
        codes = codes.view(PAYLOAD_DTYPES[fmt])
        scale = scale.view(torch.float8_e8m0fnu)
        if op == "quantize_mx":
            number = aten_mx.ScaleCalculationMode.parse(mode)
            outputs = kernels.quantize_mx(values, 1, 32, fmt, number)
            assert_same(outputs[0], codes, (fmt, mode, dtype))
            assert_same(outputs[1], scale, (fmt, mode, dtype))
        else:
            got = kernels.dequantize_mx(codes, scale, 1, 32, fmt, dtype)
            assert_same(got, values, (fmt, dtype))


def check_formats_of_six_fraction_bits() -> None:
    """Formats that no table has yet, with as many fraction bits as INT8: ties, and back.

    Their magnitudes are k/64, so the codes follow from an integer division in float64.
    """
    steps = torch.arange(0, 8 * 128, dtype=torch.float64)  # eighths of a code
    values = torch.cat([steps / 512, -steps / 512])[:, None].repeat(1, 32)
    values[:, 1:] = 127 / 64  # the block's scale is 1
    expected = (values[:, 0].abs() * 64).round().clamp_max(127).int()  # ties to even
    for fmt in (
        ElementFormat("e1m6", None, 8, 1, 6, 0x7F),
        ElementFormat("e1m6_nan", None, 8, 1, 6, 0x7E, None, 0x7F),
        ElementFormat("int8_again", torch.int8, 8, 1, 6, 0x7F, twos_complement=True),
    ):
        FORMATS[fmt.name] = fmt
        try:
            args = (-1, 32, fmt.name)
            payload, scale = kernels.quantize_mx(values.float(), *args)
            back = kernels.dequantize_mx(payload, scale, *args, torch.float32)
        finally:
            del FORMATS[fmt.name]
        assert (scale.view(torch.uint8) == 127).all(), fmt
        codes = payload[:, 0].int()
        magnitudes = codes.abs() if fmt.twos_complement else codes & 0x7F
        wanted = expected.clamp_max(fmt.max_code)
        assert torch.equal(magnitudes, wanted), fmt
        signs = torch.where(values[:, 0] < 0, -1, 1)
        assert torch.equal(back[:, 0], (wanted * signs / 64).float()), fmt


def check_codes() -> None:
    """Every byte of payload with every scale."""
    check_formats_of_six_fraction_bits()
    every = torch.arange(256, dtype=torch.uint8)
    payload = every.repeat(256, 1)
    for fmt, dtype in [*itertools.product(FORMATS.values(), REAL_DTYPES)][part()]:
        blocks = 256 * fmt.codes_per_byte // 32
        scale = every[:, None].repeat(1, blocks).view(torch.float8_e8m0fnu)
        check_dequantize(payload.view(fmt.payload_dtype), scale, -1, 32, fmt.name, dtype)


def check_layouts() -> None:
    """Every layout of the samples and the kit, and other strides of payload and scale."""
    rest = shuffled(FORMATS, MODES, REAL_DTYPES)
    plain = [*LAYOUTS.values(), *inputs.LAYOUTS.values(), *inputs.EMPTY.values()]
    swizzled = [*SWIZZLE_LAYOUTS.values(), *inputs.SWIZZLED.values()]
    pairs = [(layout, 0) for layout in plain] + [(layout, 1) for layout in swizzled]
    for layout, swizzle in pairs[part()]:
        if layout.block_size not in BLOCK_SIZES:
            continue
        fmt, mode, dtype = next(rest)
        x = make_input(layout, dtype)
        args = (layout.dim, layout.block_size, fmt)
        payload, scale = check_quantize(x, *args, mode, swizzle)
        if payload.numel():
            check_dequantize(
                every_second(payload), every_second(scale), *args, dtype, swizzle=swizzle
            )
            check_dequantize(payload.contiguous(), scale, *args, dtype, swizzle=swizzle)


def check_block_sizes() -> None:
    """Every block size along every dimension, and more rows and columns than a tile has."""
    rest = shuffled(FORMATS, REAL_DTYPES)
    for block_size in (BLOCK_SIZES * 2)[part()]:
        fmt, dtype = next(rest)
        x = torch.randn(3, 2 * block_size, 5).to(dtype)
        for y in (x, x.transpose(1, 2), x.transpose(0, 2)):
            dim = next(i for i in range(3) if y.shape[i] == 2 * block_size)
            payload, scale = check_quantize(y, dim, block_size, fmt, 3)
            check_dequantize(payload, scale, dim, block_size, fmt, dtype)
    large = [((300, 2080), 1), ((96, 300), 0), ((2, 64, 270), 1), ((1, 1 << 17), 1)]
    for shape, dim in large[part()]:
        check_quantize(torch.randn(shape)[..., : shape[-1] // 32 * 32], dim, 32, "fp8_e5m2", 0)


def check_kit() -> None:
    """The conformance kit, but for compiling, as the kernels of the CPU."""
    left_out = {"compiled"} if sys.argv[2] == "1" else {"compiled", "flush_to_zero"}
    for op, fn, supports in impl.KERNELS:
        aten_mx.register_kernel(op, "CPU", fn, supports=supports)
    checks = [name for name in testing.CHECKS if name not in left_out]
    report = testing.check_kernel("cpu", checks=checks)
    assert report.passed, report


def check_core() -> None:
    """The override for PyTorch core: in a package of torch's, called past its registry."""
    core = load_core()
    core._target = impl._target
    torch.accelerator.device_index = lambda index: nullcontext()  # type: ignore[assignment]
    for _, (x, dim, block_size, element, *mode), kwargs in [*core_calls()][1::17]:
        suffix = ".format" if isinstance(element, str) else ""
        cond, quantize = core._OVERRIDES[f"quantize_mx{suffix}"]
        args = (x, dim, block_size, element, *mode)
        assert cond(*args, **kwargs) is (x.numel() > 0)
        outputs = torch.ops.aten_mx.quantize_mx(*args, **kwargs)
        if x.numel() == 0:
            continue
        for got, want in zip(quantize(*args, **kwargs), outputs, strict=True):
            assert_same(got, want, (x.shape, *args[1:]))
        cond, dequantize = core._OVERRIDES[f"dequantize_mx{suffix}"]
        args = (*outputs, dim, block_size, *([element] if suffix else []), x.dtype)
        assert cond(*args, **kwargs)
        want = torch.ops.aten_mx.dequantize_mx(*args, **kwargs)
        assert_same(dequantize(*args, **kwargs), want, (x.shape, *args[2:]))


CHECKS = {
    check.__name__: check
    for check in (
        check_values,
        check_golden,
        check_codes,
        check_layouts,
        check_block_sizes,
        check_core,
        check_kit,
    )
}


def main() -> None:
    """One check."""
    check, flush = sys.argv[1], sys.argv[2] == "1"
    target = impl.target_of("interpreter", "")
    assert target.flushes
    impl._target = lambda device: target._replace(flushes=flush)
    assert torch.set_flush_denormal(flush) or not flush
    with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are meant where they come
        CHECKS[check]()


if __name__ == "__main__":
    main()
