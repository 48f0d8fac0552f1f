"""Registering, covering, refusing and taking away kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import assert_same, dequantize_samples, name_of, quantize_samples
from support import run_python

import aten_mx
from aten_mx.backends import composite

E4M3 = torch.float8_e4m3fn
quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx


class Recorder:
    """The emulated kernel of an op, with the arguments it was called with."""

    def __init__(self, op: str = "quantize_mx") -> None:
        self.kernel = getattr(composite, op)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.kernel(*args, **kwargs)


@contextmanager
def registered(*args: Any, **kwargs: Any) -> Iterator[aten_mx.KernelHandle]:
    handle = aten_mx.register_kernel(*args, **kwargs)
    try:
        yield handle
    finally:
        handle.unregister()


def tell(value: int) -> Callable[..., Any]:
    """A kernel whose payload says who made it."""

    def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):
        output, scale = composite.quantize_mx(self, dim, block_size, elem_format, mode)
        return output.view(torch.uint8).fill_(value).view(output.dtype), scale

    return kernel


def told() -> int:
    output, _ = quantize_mx(torch.ones(1, 32), -1, 32, E4M3)
    return int(output.view(torch.uint8)[0, 0])


EMULATED = 0x78


@pytest.mark.parametrize("sample", [*quantize_samples(), *dequantize_samples()], ids=name_of)
def test_both_overloads_come_from_one_registration(sample) -> None:
    """Same bytes, strides and dtypes; one normalized call, and none for empty tensors."""
    op = sample.overload.name().split("::")[1].split(".")[0]
    want = sample.call()
    kernel = Recorder(op)
    with registered(op, "CPU", kernel):
        assert_same(sample.call(), want)
    empty = any(tensor.numel() == 0 for tensor in sample.tensors)
    assert len(kernel.calls) == (0 if empty else 1)
    for args, kwargs in kernel.calls:
        tensors = len(sample.tensors)
        assert args[0].dtype is not torch.float4_e2m1fn_x2
        assert args[tensors] == sample.dim
        assert isinstance(args[tensors + 2], str)
        assert kwargs == {"swizzle_type": sample.kwargs.get("swizzle_type", 0)}


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
        assert str(error.value) == (
            "register_kernel: quantize_mx has a kernel for CPU already, "
            "test_registry.tell.<locals>.kernel; pass override=True to replace it"
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
            RuntimeError, match=r"has a kernel for CPU already, registered at .*test_"
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


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (None, "NoneType"),
        (torch.ones(2, 3), "Tensor"),
        ((torch.ones(1),) * 3, "Tensor, Tensor, Tensor"),
        ((torch.ones(1), None), "Tensor, NoneType"),
    ],
)
def test_wrong_outputs_of_quantize(result: Any, got: str) -> None:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return result

    name = f"{__name__}.test_wrong_outputs_of_quantize.<locals>.kernel"
    with registered("quantize_mx", "CPU", kernel), pytest.raises(TypeError) as error:
        quantize_mx(torch.ones(1, 32), -1, 32, E4M3)
    assert str(error.value) == (
        f"quantize_mx: kernel {name} returned {got}, expected a tuple (output, scale)"
    )


def test_wrong_outputs_of_dequantize() -> None:
    output, scale = quantize_mx(torch.ones(1, 32), -1, 32, E4M3)
    with (
        registered("dequantize_mx", "CPU", lambda *args, **kwargs: (output,)),
        pytest.raises(TypeError, match="returned tuple, expected one tensor"),
    ):
        dequantize_mx(output, scale, -1, 32, torch.float32)


def test_supports_sends_a_call_to_the_emulated_kernel() -> None:
    kernel = Recorder()
    seen = []

    def supports(*args: Any, **kwargs: Any) -> bool:
        seen.append((args[1:], kwargs))
        return args[1] == 1

    x = torch.randn(64, 64)
    want = quantize_mx(x, 0, 32, E4M3)
    with registered("quantize_mx", "CPU", kernel, supports=supports):
        assert_same(quantize_mx(x, 0, 32, E4M3), want)
        assert not kernel.calls
        quantize_mx.format(x, -1, 32, "fp6_e2m3", 3)
        assert len(kernel.calls) == 1
    assert seen == [
        ((0, 32, "fp8_e4m3", 0), {"swizzle_type": 0}),
        ((1, 32, "fp6_e2m3", 3), {"swizzle_type": 0}),
    ]


def test_bad_arguments_do_not_reach_the_kernel() -> None:
    kernel = Recorder()
    x = torch.ones(4, 64)
    with registered("quantize_mx", "CPU", kernel):
        for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with context(), pytest.raises(ValueError, match="block_size 48"):
                quantize_mx(x, -1, 48, E4M3)
    assert not kernel.calls


def test_outputs_never_require_grad() -> None:
    """Also of a kernel written in differentiable ops."""

    def kernel(self, dim, block_size, elem_format, mode, *, swizzle_type):
        scale = torch.zeros(1, 1, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        return (self * 2).to(E4M3), scale

    x = torch.ones(1, 32, requires_grad=True)
    with registered("quantize_mx", "CPU", kernel):
        output, scale = quantize_mx(x, -1, 32, E4M3)
    assert not output.requires_grad
    assert not scale.requires_grad


def test_registering_before_the_device_exists() -> None:
    """No device module, nothing asked of one; the key's kernels are listed."""
    program = """
import sys, torch, aten_mx
from aten_mx.backends import composite
aten_mx.register_kernel("quantize_mx", "PrivateUse1", composite.quantize_mx)
aten_mx.register_kernel("dequantize_mx", "XPU", composite.dequantize_mx)
print([(k.op, k.dispatch_key, k.kernel) for k in aten_mx.kernels() if k.compiled == "one node"])
heavy = ("triton", "torch._inductor.compile_fx", "torch._dynamo", "torch.utils.cpp_extension")
print([name for name in heavy if name in sys.modules])
"""
    listed, heavy = run_python(program).splitlines()
    name = "aten_mx.backends.composite"
    assert eval(listed) == [
        ("quantize_mx", "PrivateUse1", f"{name}.quantize_mx"),
        ("quantize_mx.format", "PrivateUse1", f"{name}.quantize_mx"),
        ("dequantize_mx", "XPU", f"{name}.dequantize_mx"),
        ("dequantize_mx.format", "XPU", f"{name}.dequantize_mx"),
    ]
    assert heavy == "[]"


def test_kernels_lists_what_answers() -> None:
    with registered("quantize_mx", "CPU", tell(1)):
        assert (
            "quantize_mx.format",
            "CPU",
            "test_registry.tell.<locals>.kernel",
            "one node",
        ) in aten_mx.kernels()
    assert {row.dispatch_key for row in aten_mx.kernels()} == {"CompositeImplicitAutograd"}


COMPILED = """
import torch, aten_mx
from aten_mx.backends import composite

def tell(value):
    def kernel(*args, **kwargs):
        output, scale = composite.quantize_mx(*args, **kwargs)
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


def test_registering_changes_what_compiled_code_runs() -> None:
    """Without a reset by the user: inlined, then the kernel, another, and back."""
    said = run_python(COMPILED, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1").split()
    assert said == [str(EMULATED), "1", "2", "1", str(EMULATED)]


WRONG_OUTPUTS = """
import torch, aten_mx
from aten_mx.backends import composite

def wrong(change):
    def kernel(*args, **kwargs):
        return change(*composite.quantize_mx(*args, **kwargs))
    handle = aten_mx.register_kernel("quantize_mx", "CPU", kernel)
    try:
        torch.ops.aten_mx.quantize_mx(torch.ones(64, 4), 0, 32, torch.float8_e4m3fn)
        print("passed")
    except RuntimeError as error:
        print(error)
    handle.unregister()

wrong(lambda output, scale: (output, scale))
wrong(lambda output, scale: (output.view(torch.uint8), scale))
wrong(lambda output, scale: (output[:32], scale))
wrong(lambda output, scale: (output, scale.contiguous()))
wrong(lambda output, scale: (output.to("meta"), scale))
"""


def test_wrong_outputs_are_caught_in_the_checking_mode() -> None:
    say = "quantize_mx: the kernel for CPU returned"
    assert run_python(WRONG_OUTPUTS, ATEN_MX_CHECK="1").splitlines() == [
        "passed",
        f"{say} output of dtype torch.uint8, expected torch.float8_e4m3fn",
        f"{say} output of shape [32, 4], expected [64, 4]",
        f"{say} scale of stride (4, 1), expected (1, 2)",
        f"{say} output of device meta, expected cpu",
    ]
    assert run_python(WRONG_OUTPUTS, ATEN_MX_CHECK="0").splitlines() == ["passed"] * 5


def test_a_plugin_that_imports_the_package_first(tmp_path: Path) -> None:
    """Importing the vendor's module first: the text says what to do."""
    write_plugin(tmp_path, "import aten_mx\ndef register(): pass\n")
    program = "try:\n import fake_plugin\nexcept RuntimeError as error:\n print(error)"
    assert run_python(program, PYTHONPATH=str(tmp_path)).strip() == (
        "aten_mx: backend fake (fake_plugin:register, fake-plugin) could not be loaded: "
        "ImportError: fake_plugin is being imported and imports aten_mx, which would call register "
        "too early; import aten_mx inside that function. ATEN_MX_AUTOLOAD=0 imports aten_mx "
        "without such backends."
    )


def write_plugin(folder: Path, text: str) -> None:
    """An installed package with one entry point."""
    (folder / "fake_plugin.py").write_text(text)
    info = folder / "fake_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[aten_mx.backends]\nfake = fake_plugin:register\n")


PLUGIN = """
def register():
    {body}
"""


@pytest.mark.parametrize(
    ("body", "autoload", "expected"),
    [
        ("import aten_mx; aten_mx.register_kernel('quantize_mx', 'HPU', print)", "1", "print"),
        ("raise OSError('no firmware')", "1", "error"),
        ("raise OSError('no firmware')", "0", "nothing"),
    ],
)
def test_entry_points(tmp_path: Path, body: str, autoload: str, expected: str) -> None:
    write_plugin(tmp_path, PLUGIN.format(body=body))
    program = """
try:
    import aten_mx
    print([row.kernel for row in aten_mx.kernels() if row.dispatch_key == "HPU"][:1])
except RuntimeError as error:
    print(error)
"""
    output = run_python(program, PYTHONPATH=str(tmp_path), ATEN_MX_AUTOLOAD=autoload).strip()
    assert (
        output
        == {
            "print": "['builtins.print']",
            "nothing": "[]",
            "error": "aten_mx: backend fake (fake_plugin:register, fake-plugin) could not be "
            "loaded: OSError: no firmware. ATEN_MX_AUTOLOAD=0 imports aten_mx without such "
            "backends.",
        }[expected]
    )
