"""``torch.func`` transforms, autograd and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from cases import PAYLOAD_DTYPES, SCALAR_TYPES
from sample_calls import (
    DEQUANTIZE,
    QUANTIZE,
    assert_same,
    bytes_of,
    dequantize_samples,
    flat,
    quantize_samples,
)
from torch import Tensor
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

import aten_mx

E4M3 = torch.float8_e4m3fn
FP4 = torch.float4_e2m1fn_x2
BATCH = 3
# Each overload with a whole, a packed and a codes-only format, and a swizzled scale.
ELEMENTS = [E4M3, FP4, "fp8_e5m2", "fp4_e2m1", "fp6_e3m2"]
SWIZZLED: dict[str, Any] = {"swizzle_type": 1}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def quantize(x: Tensor, dim: int, element: torch.dtype | str, **kwargs: Any) -> Any:
    op = QUANTIZE.format if isinstance(element, str) else QUANTIZE.default
    return op(x, dim, 32, element, 3, **kwargs)


def dequantize(
    x: Tensor, scale: Tensor, dim: int, element: torch.dtype | str, **kwargs: Any
) -> Tensor:
    if isinstance(element, str):
        return DEQUANTIZE.format(x, scale, dim, 32, element, torch.float32, **kwargs)
    return DEQUANTIZE.default(x, scale, dim, 32, torch.float32)


def stack(results: Sequence[Any], dim: int = 0) -> list[Tensor]:
    """The results of each example, stacked as bytes: ``torch.stack`` lacks some of the dtypes."""
    examples = zip(*map(flat, results), strict=True)
    return [torch.stack([bytes_of(t) for t in tensors], dim) for tensors in examples]


def assert_stacked(batched: Any, results: Sequence[Any], dim: int = 0) -> None:
    for got, want, one in zip(flat(batched), stack(results, dim), flat(results[0]), strict=True):
        assert got.dtype is one.dtype
        assert torch.equal(bytes_of(got), want)


def unbind(tensor: Tensor, dim: int) -> list[Tensor]:
    """``tensor.unbind(dim)`` for dtypes that cannot be indexed."""
    return [t.view(tensor.dtype) for t in bytes_of(tensor).unbind(dim)]


# --- vmap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("batch_dim", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_vmap_equals_stacking(element: torch.dtype | str, batch_dim: int, dim: int) -> None:
    """Any batch dimension, any blocked one of the example, there and back."""
    shape = [64, 96]
    shape.insert(batch_dim % 3, BATCH)
    x = randn(*shape)
    results = [quantize(one, dim, element) for one in x.unbind(batch_dim)]
    batched = vmap(lambda one: quantize(one, dim, element), in_dims=batch_dim)(x)
    assert_stacked(batched, results)

    back = vmap(lambda p, s: dequantize(p, s, dim, element))(*batched)
    assert_stacked(back, [dequantize(*result, dim, element) for result in results])


@pytest.mark.parametrize("out_dims", [0, 1, -1, (2, 0)])
def test_vmap_out_dims(out_dims: int | tuple[int, int]) -> None:
    x = randn(BATCH, 4, 64)
    batched = vmap(lambda one: quantize(one, -1, E4M3), out_dims=out_dims)(x)
    results = [quantize(one, -1, E4M3) for one in x]
    dims = out_dims if isinstance(out_dims, tuple) else (out_dims, out_dims)
    for got, results_of, dim in zip(batched, zip(*results, strict=True), dims, strict=True):
        assert_stacked(got, results_of, dim)


@pytest.mark.parametrize("fmt", PAYLOAD_DTYPES)
def test_vmap_swizzled(fmt: str) -> None:
    """The batch becomes a leading dimension of the scale's tiles, whatever it was."""
    x = randn(5, BATCH, 64)
    results = [quantize(one, -1, fmt, **SWIZZLED) for one in x.unbind(1)]
    batched = vmap(lambda one: quantize(one, -1, fmt, **SWIZZLED), in_dims=1)(x)
    assert_stacked(batched, results)
    back = vmap(lambda p, s: dequantize(p, s, 1, fmt, **SWIZZLED))(*batched)
    assert_stacked(back, [dequantize(*result, 1, fmt, **SWIZZLED) for result in results])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_vmap_nested(element: torch.dtype | str) -> None:
    x = randn(2, 64, BATCH, 4)
    inner = vmap(lambda one: quantize(one, 0, element), in_dims=1)
    batched = vmap(inner)(x)
    whole = quantize(x.movedim(2, 1), 2, element)
    for got, want in zip(batched, whole, strict=True):
        assert torch.equal(bytes_of(got), bytes_of(want))
    back = vmap(vmap(lambda p, s: dequantize(p, s, 0, element)))(*batched)
    assert torch.equal(back, dequantize(*whole, 2, element))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("batch_dim", [0, 1, 2])
def test_vmap_one_of_two_batched(element: torch.dtype | str, batch_dim: int) -> None:
    """An unbatched scale or payload serves every example."""
    payload, scale = quantize(randn(BATCH, 64, 4), 1, element)
    payloads, scales = unbind(payload, 0), unbind(scale, 0)

    batched = payload.movedim(0, batch_dim)
    back = vmap(lambda p: dequantize(p, scales[1], 0, element), in_dims=batch_dim)(batched)
    assert_stacked(back, [dequantize(p, scales[1], 0, element) for p in payloads])

    batched = scale.movedim(0, batch_dim)
    back = vmap(lambda s: dequantize(payloads[1], s, 0, element), in_dims=batch_dim)(batched)
    assert_stacked(back, [dequantize(payloads[1], s, 0, element) for s in scales])


def test_vmap_of_unbatched_arguments() -> None:
    """A call inside vmap whose tensors have no batch dimension is an ordinary one."""
    x, y = randn(4, 64), randn(BATCH, 2)
    result = vmap(lambda one: (one, *quantize(x, -1, E4M3)), out_dims=(0, None, None))(y)
    assert_same(result[1:], quantize(x, -1, E4M3))


def test_vmap_checks_one_example() -> None:
    """Rank, ``dim`` and sizes are those of the example, not of the batch; also when nested."""
    with pytest.raises(IndexError, match=r"dim must be in \[-1, 0\] for a tensor of rank 1, got 1"):
        vmap(lambda one: quantize(one, 1, E4M3))(randn(BATCH, 64))
    with pytest.raises(IndexError, match=r"got shape \[\]"):
        vmap(lambda one: quantize(one, 0, E4M3))(randn(64))
    with pytest.raises(ValueError, match=r"size 32 of dim 0 .* block_size 64, got shape \[32, 2\]"):
        vmap(lambda one: QUANTIZE(one, 0, 64, E4M3), in_dims=1)(randn(32, 64, 2))
    with pytest.raises(ValueError, match=r"needs rank 2 or more, got 1"):
        vmap(lambda one: quantize(one, 0, "int8", **SWIZZLED))(randn(BATCH, 64))
    with pytest.raises(ValueError, match=r"got shape \[33\]"):
        vmap(vmap(lambda one: quantize(one, 0, E4M3)))(randn(2, BATCH, 33))
    payload, scale = quantize(randn(BATCH, 4, 64), -1, E4M3)
    with pytest.raises(ValueError, match=r"scale must have shape \[4, 2\] .* got \[3, 4, 2\]"):
        vmap(lambda p: dequantize(p, scale, -1, E4M3))(payload)
    with pytest.raises(TypeError, match=r"raw bytes need elem_format \(dequantize_mx\.format\)"):
        vmap(lambda p, s: DEQUANTIZE(p, s, -1, 32, torch.float32))(payload.view(torch.uint8), scale)


def test_vmap_empty() -> None:
    """Examples without elements. An empty batch is vmap's to refuse or not."""
    results = vmap(lambda one: quantize(one, 0, "fp4_e2m1"))(randn(BATCH, 64, 0))
    assert [tuple(t.shape) for t in results] == [(BATCH, 32, 0), (BATCH, 2, 0)]


# --- autograd -------------------------------------------------------------------------------------


# PyTorch's own decompositions for forward mode are scripted when first needed (2.13).
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def round_trip(x: Tensor) -> Tensor:
    return dequantize(*quantize(x, -1, E4M3), -1, E4M3)


def test_outputs_never_require_grad() -> None:
    for sample in [*quantize_samples(), *dequantize_samples()]:
        leaf = sample.map(lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)
        for result in flat(leaf.call()):
            assert not result.requires_grad
            assert result.grad_fn is None
            assert result.is_leaf


def test_outputs_of_an_intermediate_do_not_require_grad() -> None:
    x = randn(4, 64).requires_grad_()
    assert not any(result.requires_grad for result in quantize(x * 2, -1, "fp6_e2m3"))


def test_backward_raises_and_leaves_other_paths_alone() -> None:
    x = randn(4, 64).requires_grad_()
    with pytest.raises(RuntimeError, match="does not require grad"):
        round_trip(x).sum().backward()
    assert x.grad is None
    (x * round_trip(x)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, round_trip(x))


def test_straight_through_estimator() -> None:
    """The way to train through the op."""
    x = randn(4, 64).requires_grad_()
    y = x + (round_trip(x) - x).detach()
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


@FORWARD_MODE
def test_functional_derivatives_are_zero() -> None:
    x = randn(4, 64)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    assert torch.equal(torch.func.grad(lambda t: round_trip(t).sum())(x), zero)
    value, tangent = torch.func.jvp(round_trip, (x,), (one,))
    assert torch.equal(value, round_trip(x))
    assert torch.equal(tangent, zero)
    value, vjp = torch.func.vjp(round_trip, x)
    assert torch.equal(value, round_trip(x))
    assert torch.equal(vjp(one)[0], zero)
    assert torch.equal(torch.func.grad(lambda t: (round_trip(t) * t).sum())(x), round_trip(x))


@pytest.fixture
def no_loops() -> Iterator[None]:
    """An op without a vmap rule is an error here, not a loop over the examples."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.parametrize(
    ("element", "dim", "options"),
    [*((e, dim, {}) for e in ELEMENTS for dim in (-1, 0)), ("int8", -1, SWIZZLED)],
)
def test_vmap_of_a_derivative_is_no_loop(
    no_loops: None, element: torch.dtype | str, dim: int, options: dict[str, Any]
) -> None:
    """The other transform inlines the emulated kernel; vmap meets the ops inside."""
    x = randn(BATCH, 32, 64)

    def run(t: Tensor) -> tuple[Tensor, Any]:
        outputs = quantize(t, dim, element, **options)
        return dequantize(*outputs, dim, element, **options).sum(), outputs

    batched = vmap(torch.func.grad(run, has_aux=True))(x)[1]
    assert_stacked(batched, [run(one)[1] for one in x])


@FORWARD_MODE
def test_derivatives_compose_with_vmap(no_loops: None) -> None:
    x = randn(BATCH, 4, 64)
    zero = torch.zeros_like(x)

    def loss(t: Tensor) -> Tensor:
        return round_trip(t).sum()

    assert torch.equal(vmap(torch.func.grad(loss))(x), zero)
    assert torch.equal(torch.func.grad(lambda t: vmap(loss)(t).sum())(x), zero)
    assert torch.equal(torch.func.jvp(vmap(round_trip), (x,), (x,))[1], zero)
    assert not torch.func.jacrev(lambda t: round_trip(t)[0, :2])(x[0, :1]).any()
    assert not torch.func.hessian(loss)(x[0, :1]).any()


@FORWARD_MODE
def test_forward_mode_dual_tensors() -> None:
    """Outputs carry no tangent."""
    x = randn(4, 64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        value = torch.autograd.forward_ad.unpack_dual(round_trip(dual))
        assert value.tangent is None
        assert torch.equal(value.primal, round_trip(x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool) -> None:
    """Recomputed in backward: the same bytes, so the same gradient."""
    w = randn(64, 64).requires_grad_()

    def layer(x: Tensor) -> Tensor:
        return round_trip(x) @ w + x

    def gradients(run: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        x = randn(4, 64).requires_grad_()
        run(x).square().sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        result = x.grad, w.grad
        w.grad = None
        return result

    expected = gradients(layer)
    actual = gradients(lambda x: checkpoint(layer, x, use_reentrant=use_reentrant))
    assert_same(actual, expected)


# --- threads --------------------------------------------------------------------------------------


def test_threads() -> None:
    """Calls of many threads at once, each with its own shape, format and grad mode."""
    elements = [*SCALAR_TYPES.values(), *PAYLOAD_DTYPES]

    def work(number: int) -> tuple[Any, Any]:
        x = randn(number % 7 + 1, 64).requires_grad_(number % 2 == 0)
        element = elements[number % len(elements)]
        with torch.set_grad_enabled(number % 3 != 0):
            result = quantize(x, -1, element)
            return result, dequantize(*result, -1, element)

    jobs = range(200)
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(work, jobs))
    for number, (result, back) in zip(jobs, threaded, strict=True):
        expected, expected_back = work(number)
        assert_same(result, expected)
        assert_same(back, expected_back)


def test_an_error_in_one_thread_leaves_the_others_alone() -> None:
    def work(number: int) -> str:
        try:
            aten_mx.quantize_mx(randn(2, 64 if number % 2 else 33))
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(work, range(100)))
    assert set(texts[1::2]) == {""}
    assert len(set(texts[::2])) == 1
    assert "33" in texts[0]
