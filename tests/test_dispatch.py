"""Schemas, PyTorch's own checks of an op, fakes against real results, and kernels from outside."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sample_calls import (
    DEQUANTIZE,
    OVERLOADS,
    QUANTIZE,
    REAL_DTYPES,
    Sample,
    assert_same,
    bytes_of,
    dequantize_samples,
    description,
    flat,
    quantize_samples,
)
from support import case
from torch import Tensor
from torch._subclasses import FakeTensorMode

E4M3 = torch.float8_e4m3fn

# --- schemas --------------------------------------------------------------------------------------

# specification.md, 1, letter by letter. A C++ kernel is written against these.
SCHEMAS = """
quantize_mx(Tensor self, int dim, int block_size, ScalarType dtype, int scale_calculation_mode=0) -> (Tensor output, Tensor scale)
quantize_mx.format(Tensor self, int dim, int block_size, str elem_format, int scale_calculation_mode=0, *, int swizzle_type=0) -> (Tensor output, Tensor scale)
dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, ScalarType dtype) -> Tensor
dequantize_mx.format(Tensor self, Tensor scale, int dim, int block_size, str elem_format, ScalarType dtype, *, int swizzle_type=0) -> Tensor
""".strip().splitlines()  # noqa: E501


def test_schemas() -> None:
    assert [str(op._schema) for op in OVERLOADS] == [f"aten_mx::{schema}" for schema in SCHEMAS]
    for packet in (QUANTIZE, DEQUANTIZE):
        assert packet.overloads() == ["default", "format"]


@pytest.mark.parametrize("op", OVERLOADS, ids=str)
def test_tags_and_purity(op: torch._ops.OpOverload) -> None:
    """Functional: nothing is written, no output aliases an input, so compilers may merge calls."""
    assert op.tags == [torch.Tag.pt2_compliant_tag]
    assert not op._schema.is_mutable
    assert all(r.alias_info is None for r in [*op._schema.arguments, *op._schema.returns])


# --- opcheck --------------------------------------------------------------------------------------

NO_ALLCLOSE = (E4M3, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
CHEAP_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.fixture
def bytewise_allclose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets PyTorch's schema check take tensors of the four dtypes of ``NO_ALLCLOSE``.

    It compares the inputs of each op that runs, before and after, with ``torch.allclose``, which
    has no kernel for them (2.13). Bytes are compared instead, which is stricter. It may go when
    ``test_pytorchs_schema_check_cannot_compare`` fails.
    """
    allclose = torch.allclose

    def comparison(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> bool:
        if a.dtype not in NO_ALLCLOSE:
            return allclose(a, b, *args, **kwargs)
        return a.dtype is b.dtype and torch.equal(bytes_of(a), bytes_of(b))

    monkeypatch.setattr(torch, "allclose", comparison)


@pytest.mark.parametrize("dtype", NO_ALLCLOSE, ids=str)
def test_pytorchs_schema_check_cannot_compare(dtype: torch.dtype) -> None:
    """When this fails, drop ``bytewise_allclose``."""
    tensor = torch.zeros(4, dtype=torch.uint8).view(dtype)
    with pytest.raises(Exception, match=r"test_schema failed with .* not implemented for"):
        torch.library.opcheck(torch.ops.aten.clone.default, (tensor,), test_utils="test_schema")


def requiring_grad(sample: Sample) -> Sample:
    """Leaves of the same strides."""
    return sample.map(lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)


SAMPLES = {QUANTIZE: quantize_samples, DEQUANTIZE: dequantize_samples}


@pytest.mark.usefixtures("bytewise_allclose")
@pytest.mark.parametrize("op", SAMPLES, ids=str)
def test_opcheck(op: torch._ops.OpOverloadPacket) -> None:
    for sample in SAMPLES[op]():
        with case(sample.name):
            opcheck(sample, CHEAP_CHECKS)
            opcheck(requiring_grad(sample), CHEAP_CHECKS)


@pytest.mark.parametrize(
    "start", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_opcheck_aot_dispatch(start: int) -> None:
    """AOTAutograd with symbolic sizes, seconds each: a few formats, layouts, swizzled scales."""
    samples = [*quantize_samples()[::9], *dequantize_samples()[::11]]
    for number, sample in list(enumerate(samples))[start::3]:
        with case(sample.name):
            tried = requiring_grad(sample) if number % 2 else sample
            opcheck(tried, ("test_aot_dispatch_dynamic",))


def opcheck(sample: Sample, test_utils: tuple[str, ...]) -> None:
    result = torch.library.opcheck(
        sample.overload, sample.args, sample.kwargs, test_utils=test_utils
    )
    assert set(result.values()) == {"SUCCESS"}


# --- fakes ----------------------------------------------------------------------------------------


def expected_strides(sample: Sample, result: Tensor) -> tuple[int, ...]:
    """The layout rule of specification.md, 5."""
    moved = [*result.shape[: sample.dim], *result.shape[sample.dim + 1 :]]
    empty = torch.empty([*moved, result.shape[sample.dim]], device="meta")
    return empty.movedim(-1, sample.dim).stride()


def test_meta_fake_and_eager_agree() -> None:
    """To the stride, also where a size is 0 or 1; and the strides are the layout rule's."""
    for sample in [*quantize_samples(), *dequantize_samples()]:
        with case(sample.name):
            real = sample.call()
            for result in flat(real):
                assert result.stride() == expected_strides(sample, result)
                assert result.storage_offset() == 0
                assert not result.is_neg()
            meta = sample.map(lambda tensor: tensor.to("meta")).call()
            assert description(meta) == description(real)
            assert all(result.is_meta for result in flat(meta))
            with FakeTensorMode() as mode:
                fake = sample.map(mode.from_tensor).call()
            assert description(fake) == description(real)
            assert all(result.device.type == "cpu" for result in flat(fake))


NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "neg_view": torch._neg_view,
    "conj_imag": lambda x: torch.complex(x, x).conj().imag,
    "transposed": lambda x: torch._neg_view(x).t(),
}


@pytest.mark.parametrize("name", NEGATIVE)
@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
def test_negative_views(name: str, dtype: torch.dtype) -> None:
    """A lazy negative is resolved first, in both overloads and on meta and fake tensors."""
    x = torch.randn(64, 64)
    lazy = NEGATIVE[name](x if name == "conj_imag" else x.to(dtype))
    assert lazy.is_neg()
    resolved = lazy.resolve_neg()
    for op, element in ((QUANTIZE.default, E4M3), (QUANTIZE.format, "fp4_e2m1")):
        expected = op(resolved, 0, 32, element)
        assert_same(op(lazy, 0, 32, element), expected)
        assert description(op(lazy.to("meta"), 0, 32, element)) == description(expected)
        with FakeTensorMode() as mode:
            assert description(op(mode.from_tensor(lazy), 0, 32, element)) == description(expected)


# --- a kernel from outside ------------------------------------------------------------------------


class Kernels:
    """CPU kernels of both base overloads; they count their calls and answer with marked bytes."""

    MARK = 0x2A

    def __init__(self) -> None:
        self.library = torch.library.Library("aten_mx", "IMPL")
        self.calls: list[str] = []
        self.library.impl("quantize_mx", self.quantize, "CPU")
        self.library.impl("dequantize_mx", self.dequantize, "CPU")

    def quantize(
        self, x: Tensor, dim: int, block_size: int, dtype: torch.dtype, mode: int = 0
    ) -> tuple[Tensor, Tensor]:
        self.calls.append("quantize_mx")
        output, scale = QUANTIZE.default(x.to("meta"), dim, block_size, dtype, mode)
        return self.marked(output), self.marked(scale)

    def dequantize(
        self, x: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype
    ) -> Tensor:
        self.calls.append("dequantize_mx")
        args = (x.to("meta"), scale.to("meta"), dim, block_size, dtype)
        return self.marked(DEQUANTIZE.default(*args))

    def marked(self, like: Tensor) -> Tensor:
        values = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        bytes_of(values).fill_(self.MARK)
        return values

    def take_calls(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    kernels = Kernels()
    yield kernels
    kernels.library._destroy()


CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "eager": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def has_scalar_type(sample: Sample) -> bool:
    return "fp6" not in str(sample.args) and not sample.kwargs


def test_a_kernel_is_reached_by_both_overloads(kernels: Kernels) -> None:
    """By ``.format`` wherever a ScalarType exists; FP6 and swizzled scales are emulated.

    The outputs stay as specified, so an FP4 payload is still bytes.
    """
    samples = [*quantize_samples(), *dequantize_samples()]
    kernels.take_calls()  # made the samples
    for sample, context in itertools.product(samples, CONTEXTS):
        with case(sample.name, context):
            expected = sample.map(lambda tensor: tensor.to("meta")).call()
            with CONTEXTS[context]():
                result = sample.call()
            assert description(result) == description(expected)
            calls = kernels.take_calls()
            if has_scalar_type(sample):
                assert calls == [sample.overload._schema.name.removeprefix("aten_mx::")]
                assert all(bool((bytes_of(t) == Kernels.MARK).all()) for t in flat(result))
            else:
                assert calls == []


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_kernel_runs_behind_validation(kernels: Kernels, context: str) -> None:
    x, payload = torch.ones(4, 64), torch.zeros(4, 64, dtype=torch.int8)
    scale = torch.ones(4, 2).to(torch.float8_e8m0fnu)
    with CONTEXTS[context](), pytest.raises(ValueError, match="got shape"):
        QUANTIZE(x, -1, 48, torch.int8)
    with CONTEXTS[context](), pytest.raises(ValueError, match="block_size must be at least 1"):
        QUANTIZE.format(x, -1, 0, "int8")
    with CONTEXTS[context](), pytest.raises(TypeError, match=r"got torch\.float64"):
        QUANTIZE(x.double(), -1, 32, torch.int8)
    with CONTEXTS[context](), pytest.raises(ValueError, match="scale must have shape"):
        DEQUANTIZE(payload, scale, -1, 16, torch.float32)
    assert kernels.take_calls() == []
    with torch.inference_mode():
        tensor = torch.ones(4, 64)
        with pytest.raises(IndexError, match="dim must be in"):
            QUANTIZE(tensor, 2, 32, torch.int8)
        QUANTIZE(tensor, 1, 32, torch.int8)
    assert kernels.take_calls() == ["quantize_mx"]


def test_a_kernels_outputs_do_not_require_grad(kernels: Kernels) -> None:
    x = torch.ones(4, 64, requires_grad=True)
    for result in (QUANTIZE(x, -1, 32, E4M3), QUANTIZE.format(x, -1, 32, "fp4_e2m1")):
        assert not any(tensor.requires_grad for tensor in result)
    assert kernels.take_calls() == ["quantize_mx", "quantize_mx"]


@pytest.mark.parametrize("overload", [QUANTIZE.default, QUANTIZE.format], ids=str)
def test_a_differentiable_kernels_outputs_do_not_require_grad(
    overload: torch._ops.OpOverload,
) -> None:
    """As the last test, for a kernel made of ops that have a derivative."""
    library = torch.library.Library("aten_mx", "IMPL")
    try:
        library.impl(
            "quantize_mx",
            lambda x, dim, size, dtype, mode=0: (
                (x * 2).to(dtype),
                (x[:, ::32] * 1).to(torch.float8_e8m0fnu),
            ),
            "CPU",
        )
        x = torch.ones(4, 64, requires_grad=True)
        result = overload(x, -1, 32, E4M3 if overload is QUANTIZE.default else "fp8_e4m3")
    finally:
        library._destroy()
    assert not any(tensor.requires_grad for tensor in result)


def test_a_destroyed_kernel_is_gone() -> None:
    """The emulated kernel answers again, in both overloads; a new kernel can be registered."""
    x = torch.randn(4, 64)
    before = [QUANTIZE(x, -1, 32, E4M3), QUANTIZE.format(x, -1, 32, "fp8_e4m3")]
    for _ in range(2):
        kernels = Kernels()
        QUANTIZE(x, -1, 32, E4M3)
        QUANTIZE.format(x, -1, 32, "fp8_e4m3")
        assert kernels.take_calls() == ["quantize_mx"] * 2
        kernels.library._destroy()
        after = [QUANTIZE(x, -1, 32, E4M3), QUANTIZE.format(x, -1, 32, "fp8_e4m3")]
        assert kernels.take_calls() == []
        for result, expected in zip(after, before, strict=True):
            assert_same(result, expected)
