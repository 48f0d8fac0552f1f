"""The table of overloads: what lists them follows it, and each path validates a call once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import aten_mx
from aten_mx import emulated, validation
from aten_mx.backends import composite
from aten_mx.overloads import NAMESPACE, OPS, OVERLOADS, Overload, overloads_of
from aten_mx.testing import CHECKS, checks

QUANTIZE, DEQUANTIZE = torch.ops.aten_mx.quantize_mx, torch.ops.aten_mx.dequantize_mx
CPU = torch.device("cpu")


def test_public_ops_are_those_of_the_table() -> None:
    """No overload is defined elsewhere, and none of the table is missing."""
    defined = {
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{NAMESPACE}::")
    }
    public = {name for name in defined if not name.startswith(f"{NAMESPACE}::_")}
    assert public == {row.qualified_name for row in OVERLOADS}
    assert {f"{NAMESPACE}::_{op}" for op in OPS} <= defined


@pytest.mark.parametrize("row", OVERLOADS, ids=lambda row: row.name)
def test_the_row_reads_its_schema(row: Overload) -> None:
    arguments = row.handle._schema.arguments
    assert row.positional == [a.name for a in arguments if not a.kwarg_only]
    assert row.keywords == [a.name for a in arguments if a.kwarg_only]
    assert row.tensors == sum(str(a.type) == "Tensor" for a in arguments)
    assert row.returns == [result.name or "" for result in row.handle._schema.returns]


@pytest.mark.parametrize("row", OVERLOADS, ids=lambda row: row.name)
@pytest.mark.parametrize("key", ["BackendSelect", "CompositeImplicitAutograd", "Meta"])
def test_each_overload_is_registered(row: Overload, key: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(row.qualified_name, key)


@pytest.mark.parametrize("op", OPS)
def test_the_conformance_kit_has_cases_of_each_operator(op: str) -> None:
    """An operator that is added without cases would pass every run."""
    target = checks.Target(CPU, (op,), "inductor")
    kinds = ("golden", "layouts", "swizzled", "fresh_outputs", "errors", "fakes", "compiled")
    without = [kind for kind in kinds if not any(op in name for name, _ in CHECKS[kind](target))]
    assert without == []


def test_the_address_of_0_1_is_the_emulated_kernel() -> None:
    assert composite.quantize_mx is emulated.quantize_mx
    assert composite.dequantize_mx is emulated.dequantize_mx


# --- one validation -------------------------------------------------------------------------------


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The op of each validation that ran in Python; each begins with this check."""
    ops: list[str] = []
    first = validation._check_dense

    def recorded(op: str, name: str, tensor: Tensor) -> None:
        if name == "self":
            ops.append(op)
        first(op, name, tensor)

    monkeypatch.setattr(validation, "_check_dense", recorded)
    return ops


X = torch.ones(4, 64)
PAYLOAD = torch.ones(4, 64, dtype=torch.int8)
SCALE = torch.full((4, 2), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
CALLS: dict[str, tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = {
    "base": ("quantize_mx", lambda x: QUANTIZE(x, -1, 32, torch.int8), (X,)),
    ".format": ("quantize_mx", lambda x: QUANTIZE.format(x, -1, 32, "int8"), (X,)),
    ".format, no dtype": ("quantize_mx", lambda x: QUANTIZE.format(x, -1, 32, "fp6_e2m3"), (X,)),
    "front door": ("quantize_mx", aten_mx.quantize_mx, (X,)),
    "back, base": (
        "dequantize_mx",
        lambda q, s: DEQUANTIZE(q, s, -1, 32, torch.float32),
        (PAYLOAD, SCALE),
    ),
    "back, .format": (
        "dequantize_mx",
        lambda q, s: DEQUANTIZE.format(q, s, -1, 32, "int8", torch.float32),
        (PAYLOAD, SCALE),
    ),
    "back, front door": ("dequantize_mx", aten_mx.dequantize_mx, (PAYLOAD, SCALE)),
}


def unvalidated(row: Overload) -> Callable[..., Any]:
    """The emulated kernel of an overload as a device's own: it validates nothing."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return row.emulate(*args[: row.tensors], row.describe(*args, **kwargs))

    return kernel


def kernel_of(op: str, kind: str) -> Any:
    """A CPU kernel of ``op``: for both overloads through the registry, or for the base alone."""
    base, *_, last = overloads_of(op)
    if kind == "registered":
        return aten_mx.register_kernel(op, "CPU", unvalidated(last)).unregister
    library = torch.library.Library(NAMESPACE, "IMPL")
    library.impl(base.handle, unvalidated(base), "CPU")
    return library._destroy


@pytest.mark.parametrize("kernel", ["emulated", "registered", "base"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_validated_once(name: str, kernel: str, validated: list[str]) -> None:
    op, call, tensors = CALLS[name]
    remove = (lambda: None) if kernel == "emulated" else kernel_of(op, kernel)
    try:
        call(*tensors)
        assert validated == [op], "eager"
        validated.clear()
        call(*(tensor.to("meta") for tensor in tensors))
        assert validated == [op], "meta"
        validated.clear()
        with FakeTensorMode() as mode:
            call(*map(mode.from_tensor, tensors))
        assert set(validated) == {op}, "fake"  # PyTorch traces the composite, then the base's
        validated.clear()
        with torch.inference_mode():
            call(*tensors)
        assert validated == [op], "inference_mode"
        validated.clear()
        make_fx(lambda *args: call(*args))(*tensors)  # noqa: PLW0108 - it reads the signature
        assert set(validated) == {op}, "traced"
    finally:
        remove()


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_is_called_validated(name: str, validated: list[str]) -> None:
    """A third party's kernel never sees a wrong call, and its outputs are those of the call."""
    op, call, tensors = CALLS[name]
    seen: list[int] = []
    answer = unvalidated(overloads_of(op)[-1])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        seen.append(len(validated))
        return answer(*args, **kwargs)

    handle = aten_mx.register_kernel(op, "CPU", kernel)
    try:
        call(*tensors)
        with pytest.raises((ValueError, TypeError, IndexError)):
            call(*(tensor[..., :31] for tensor in tensors))
    finally:
        handle.unregister()
    assert seen == [1]
