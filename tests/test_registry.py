"""Registering, covering, refusing and taking away kernels."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest
import torch
from support import run_python
from telling_kernels import EMULATED, registered, tell, told

import aten_mx


def test_the_decorator() -> None:
    kernel = aten_mx.register_kernel("quantize_mx", "CPU", override=False)(tell(1))
    assert isinstance(kernel, aten_mx.KernelHandle)
    assert told() == 1
    assert kernel(torch.ones(1, 32), 1, 32, "int8", 0, swizzle_type=0)[0][0, 0] == 1
    kernel.unregister()
    assert told() == EMULATED


def test_a_second_registration_is_refused() -> None:
    with registered("quantize_mx", "CPU", tell(1)):
        with pytest.raises(RuntimeError) as error:
            aten_mx.register_kernel("quantize_mx", "CPU", tell(2))
        assert re.fullmatch(
            "register_kernel: quantize_mx has a kernel for CPU already, Python function "
            r"telling_kernels.tell.<locals>.kernel \(.*telling_kernels.py:\d+\); "
            "pass override=True to replace it",
            str(error.value),
        )
        assert told() == 1
    assert told() == EMULATED


def test_a_foreign_kernel_is_refused_and_restored() -> None:
    """One that torch.library registered, for the base overload alone."""
    library = torch.library.Library("aten_mx", "IMPL")
    library.impl(
        "quantize_mx",
        lambda self, *args: tell(7)(self, 1, 32, "fp8_e4m3", 0, swizzle_type=0),
        "CPU",
    )
    try:
        with pytest.raises(
            RuntimeError, match=r"has a kernel for CPU already, Python function \(.*test_"
        ):
            aten_mx.register_kernel("quantize_mx", "CPU", tell(2))
        with registered("quantize_mx", "CPU", tell(2), override=True):
            assert told() == 2
        assert told() == 7
    finally:
        library._destroy()
    assert told() == EMULATED


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_kernels_lie_over_each_other(order: tuple[int, ...]) -> None:
    """The last of those still registered answers, whatever the order they are taken away in."""
    handles = {
        value: aten_mx.register_kernel("quantize_mx", "CPU", tell(value), override=value > 0)
        for value in range(3)
    }
    for value in order:
        assert told() == max(handles)
        handles.pop(value).unregister()
    assert told() == EMULATED


def test_a_dropped_handle_changes_nothing() -> None:
    aten_mx.register_kernel("quantize_mx", "CPU", tell(3))
    gc.collect()
    assert told() == 3
    with pytest.raises(RuntimeError, match="already"):
        aten_mx.register_kernel("quantize_mx", "CPU", tell(4))
    aten_mx.registry._registered[-1].unregister()
    assert told() == EMULATED


def test_unregistering_twice() -> None:
    handle = aten_mx.register_kernel("quantize_mx", "CPU", tell(3))
    handle.unregister()
    with registered("quantize_mx", "CPU", tell(4)):
        handle.unregister()
        assert told() == 4
    assert repr(handle).endswith("tell.<locals>.kernel, unregistered)")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("quantize", "CPU"),
            "register_kernel: op must be quantize_mx or dequantize_mx, got quantize",
        ),
        (
            ("quantize_mx", "cpu"),
            "register_kernel: dispatch_key must be one of CPU, CUDA, HIP, HPU, IPU, Lazy, MAIA, "
            "MPS, MTIA, PrivateUse1, PrivateUse2, PrivateUse3, VE, XLA, XPU, got cpu",
        ),
    ],
)
def test_unknown_op_or_key(args: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole text is compared)
        aten_mx.register_kernel(*args, tell(1))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 5}, "register_kernel: fn must be callable, got 5"),
        ({"fn": tell(1), "supports": True}, "register_kernel: supports must be callable, got True"),
    ],
)
def test_what_cannot_be_called_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        aten_mx.register_kernel("quantize_mx", "CPU", **arguments)
    assert str(error.value) == message


def test_registering_before_the_device_exists() -> None:
    """No device module, nothing asked of one; the key's kernels are listed."""
    program = """
import sys, torch, aten_mx
from aten_mx import emulated
aten_mx.register_kernel("quantize_mx", "PrivateUse1", emulated.quantize_mx)
aten_mx.register_kernel("dequantize_mx", "XPU", emulated.dequantize_mx)
print([(k.op, k.dispatch_key, k.kernel) for k in aten_mx.kernels() if k.compiled == "one node"])
heavy = ("triton", "torch._inductor.compile_fx", "torch._dynamo", "torch.utils.cpp_extension")
print([name for name in heavy if name in sys.modules])
"""
    listed, heavy = run_python(program).splitlines()
    name = "Python function aten_mx.emulated"
    assert eval(listed) == [
        ("quantize_mx", "PrivateUse1", f"{name}.quantize_mx"),
        ("quantize_mx.format", "PrivateUse1", f"{name}.quantize_mx"),
        ("dequantize_mx", "XPU", f"{name}.dequantize_mx"),
        ("dequantize_mx.format", "XPU", f"{name}.dequantize_mx"),
    ]
    assert heavy == "[]"


def test_kernels_lists_what_answers() -> None:
    with registered("quantize_mx", "CPU", tell(1)):
        row = next(r for r in aten_mx.kernels() if r[:2] == ("quantize_mx.format", "CPU"))
        assert row[2:4] == ("Python function telling_kernels.tell.<locals>.kernel", "one node")
        assert re.search(r"telling_kernels\.py:\d+$", row.source)
    assert {row.dispatch_key for row in aten_mx.kernels()} == {"CompositeImplicitAutograd"}


COMPILED = """
import torch, aten_mx
from aten_mx import emulated

def tell(value):
    def kernel(*args, **kwargs):
        output, scale = emulated.quantize_mx(*args, **kwargs)
        return output.view(torch.uint8).fill_(value).view(output.dtype), scale
    return kernel

@torch.compile(fullgraph=True)
def compiled(x):
    return torch.ops.aten_mx.quantize_mx(x, -1, 32, torch.float8_e4m3fn)[0]

def told():
    print(compiled(torch.ones(1, 32)).view(torch.uint8)[0, 0].item())

told()
first = aten_mx.register_kernel("quantize_mx", "CPU", tell(1))
told()
second = aten_mx.register_kernel("quantize_mx", "CPU", tell(2), override=True)
told()
second.unregister()
told()
first.unregister()
told()
"""


@pytest.mark.slow  # compiles five times; test_kernel_under_compile.py has it once by default
def test_registering_changes_what_compiled_code_runs() -> None:
    """Without a reset by the user: inlined, then the kernel, another, and back."""
    said = run_python(COMPILED, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1").split()
    assert said == [str(EMULATED), "1", "2", "1", str(EMULATED)]
