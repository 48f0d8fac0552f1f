"""What a registered kernel is called with, and what it may give back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sample_calls import Sample, assert_same, dequantize_samples, quantize_samples
from support import case, run_python
from telling_kernels import Recorder, registered

E4M3 = torch.float8_e4m3fn
quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx


def test_both_overloads_come_from_one_registration() -> None:
    """Same bytes, strides and dtypes; one normalized call, and none for empty tensors."""
    for sample in [*quantize_samples(), *dequantize_samples()]:
        with case(sample.name):
            check_registration(sample)


def check_registration(sample: Sample) -> None:
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


WRONG_OUTPUTS = """
import torch, aten_mx
from aten_mx import emulated

def wrong(change):
    def kernel(*args, **kwargs):
        return change(*emulated.quantize_mx(*args, **kwargs))
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
