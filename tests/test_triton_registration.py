"""When the Triton kernels are registered, which calls they take, and what compilers see."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import run_python

import aten_mx
from aten_mx import registry
from aten_mx.backends.triton import impl


def test_support_follows_the_block_size_alone() -> None:
    """Cheap, and safe for fakes: nothing of a tensor is read."""
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(4, 768, device="cuda")
        for block_size in (1, 16, 24, 32, 48, 64, 96, 128, 256):
            expected = block_size in (16, 32, 64, 128)
            args = (1, block_size, "fp8_e4m3")
            assert impl.supports_quantize(x, *args, 0, swizzle_type=0) is expected
            assert impl.supports_dequantize(x, x, *args, x.dtype, swizzle_type=0) is expected


def test_a_call_that_is_not_for_them_is_refused() -> None:
    with pytest.raises(ValueError, match="takes block sizes 16, 32, 64, 128, got 24"):
        impl.quantize_mx(torch.ones(2, 48), 1, 24, "fp8_e4m3")
    with pytest.raises(RuntimeError, match="only under TRITON_INTERPRET=1"):
        impl.quantize_mx(torch.ones(2, 64), 1, 32, "fp8_e4m3")


def test_only_the_public_launchers_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registered kernels run behind the dispatcher's validation: a call is validated once."""
    validated: list[str] = []
    monkeypatch.setattr(impl, "check_quantize", lambda *a, **k: validated.append("quantize"))
    monkeypatch.setattr(impl, "check_dequantize", lambda *a, **k: validated.append("dequantize"))
    monkeypatch.setattr(impl, "prepare_quantize", lambda *args: (None, *args[:2]))
    monkeypatch.setattr(impl, "prepare_dequantize", lambda *args: (None, args[0]))
    monkeypatch.setattr(impl, "_target", lambda device: impl.target_of("interpreter", ""))
    x = torch.ones(2, 64)
    quantize, dequantize = (x, 1, 32, "int8", 0), (x, x, 1, 32, "int8", torch.float32)
    for args, (_, kernel, _) in zip((quantize, dequantize), impl.KERNELS, strict=True):
        kernel(*args, swizzle_type=0)
    assert validated == []
    impl.quantize_mx(*quantize)
    impl.dequantize_mx(*dequantize)
    assert validated == ["quantize", "dequantize"]


FIRST_USE = """
import json, sys, torch, aten_mx

assert "triton" not in sys.modules
assert not [row for row in aten_mx.kernels() if row.dispatch_key in ("CUDA", "XPU")]
for module in (torch.cuda, torch.xpu):  # what setting a device up does
    for call, _ in module._queued_calls:
        if getattr(call, "func", call).__module__.startswith("aten_mx"):
            call()
rows = [row for row in aten_mx.kernels() if row.dispatch_key in ("CUDA", "XPU")]
print(json.dumps([(row.op, row.dispatch_key, row.kernel) for row in rows]))
"""


def test_registered_at_the_first_use_of_a_device() -> None:
    assert sorted(json.loads(run_python(FIRST_USE))) == sorted(
        [
            f"{op}{overload}",
            key,
            f"Python function aten_mx.backends.triton.impl.run_{op.removesuffix('_mx')}",
        ]
        for op in ("quantize_mx", "dequantize_mx")
        for overload in ("", ".format")
        for key in ("CUDA", "XPU")
    )


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[Any] = []
    for module in impl.DEVICES.values():
        monkeypatch.setattr(module, "_lazy_call", queued.append)
    monkeypatch.setenv("ATEN_MX_TRITON", "off")
    impl.register_at_first_use()
    assert queued == []
    monkeypatch.delenv("ATEN_MX_TRITON")
    impl.register_at_first_use()
    assert len(queued) == 2


@pytest.mark.parametrize(("module", "text"), [(None, "cannot be imported"), ("3.5.1", "older")])
def test_without_triton_the_emulated_kernel_answers(
    module: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = None if module is None else SimpleNamespace(__version__=module)
    monkeypatch.setitem(sys.modules, "triton", fake)
    assert text in str(impl.triton_fault())
    assert impl.register("PrivateUse1") is False
    assert "PrivateUse1" not in {row.dispatch_key for row in aten_mx.kernels()}


def test_anothers_kernel_stays() -> None:
    handles = [aten_mx.register_kernel("quantize_mx", "PrivateUse1", lambda *args, **kwargs: None)]
    try:
        assert impl.register("PrivateUse1") is False
        kernels = {row.op: row.kernel for row in aten_mx.kernels() if row.compiled == "one node"}
        assert "lambda" in kernels["quantize_mx.format"]
        name = "Python function aten_mx.backends.triton.impl.run_dequantize"
        assert kernels["dequantize_mx.format"] == name
    finally:
        handles += [h for h in registry._registered if h.dispatch_key == "PrivateUse1"]
        for handle in handles:
            handle.unregister()


def test_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_MX_TRITON", "on")
    with pytest.raises(ValueError, match="ATEN_MX_TRITON must be one of auto, off, got on"):
        impl.register_at_first_use()


ONE_NODE = """
import torch, aten_mx
from aten_mx.backends.triton import impl

impl._target(torch.device("cpu"))  # the interpreter
for op, fn, supports in impl.KERNELS:
    aten_mx.register_kernel(op, "CPU", fn, supports=supports)
op = torch.ops.aten_mx.quantize_mx.format
calls = []
run = impl.prepare_quantize
impl.prepare_quantize = lambda *args: calls.append(args) or run(*args)
def quantize(x):
    return op(x + 1, -1, 32, "fp6_e2m3", 3)
x = torch.randn(4, 64)
compiled = torch.compile(quantize, fullgraph=True)(x)
assert len(calls) == 1, calls
for got, want in zip(compiled, quantize(x)):
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
from torch.fx.experimental.proxy_tensor import make_fx
table = aten_mx.decomposition_table()
graph = make_fx(quantize, decomposition_table=table)(x).graph
assert not [node for node in graph.nodes if "quantize_mx" in str(node.target)]
"""


@pytest.mark.slow  # what it shares with every kernel is in test_kernel_under_compile.py
def test_one_node_under_compile_and_inlined_by_the_table() -> None:
    run_python(ONE_NODE, TRITON_INTERPRET="1", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
