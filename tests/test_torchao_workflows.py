"""TorchAO's workflows with the ops underneath: the same bits as with the switch off."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao.prototype.moe_training import mxfp8_linear
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization import quantize_
from torchao.quantization.qat import QATConfig
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
from torchao_peer import both, each_element, same_bits

from aten_mx.integrations import torchao as switch

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
EMULATED = KernelPreference.EMULATED

pytestmark = pytest.mark.usefixtures("switched_off")


def network() -> nn.Module:
    torch.manual_seed(0)
    # ReLU rounds nothing: Inductor would not round to bfloat16 between another and the next cast.
    layers = (nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False))
    return nn.Sequential(*layers).to(torch.bfloat16)


def activations(rows: int = 5) -> Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)


def config(element: Any) -> MXDynamicActivationMXWeightConfig:
    return MXDynamicActivationMXWeightConfig(
        activation_dtype=element, weight_dtype=element, kernel_preference=EMULATED
    )


def quantized(element: Any) -> nn.Module:
    model = network()
    quantize_(model, config(element))
    return model


@each_element
def test_inference(element: Any) -> None:
    off, on = both(lambda: quantized(element)(activations()))
    assert same_bits(off, on)
    assert not same_bits(off, network()(activations()))


@pytest.mark.parametrize("mode", list(ScaleCalculationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("wgrad_with_hp", [False, True])
def test_training(mode: ScaleCalculationMode, wgrad_with_hp: bool) -> None:
    """Output and both gradients of TorchAO's linear layer: all casts, along either dimension."""

    def step() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        layer = mxfp8_linear.MXFP8Linear(
            64,
            96,
            dtype=torch.bfloat16,
            kernel_preference=EMULATED,
            scale_calculation_mode=mode,
            wgrad_with_hp=wgrad_with_hp,
        )
        x = activations(32).requires_grad_()
        output = layer(x)
        output.float().square().sum().backward()
        assert x.grad is not None
        assert layer.weight.grad is not None
        return output, x.grad, layer.weight.grad

    for off, on in zip(*both(step), strict=True):
        assert same_bits(off, on)


@pytest.mark.parametrize("element", [E4M3, FP4], ids=["fp8", "fp4"])
def test_quantization_aware_training(element: Any) -> None:
    """Three steps of ``MXFakeQuantizedLinear``, then the conversion to ``MXTensor`` weights."""

    def train() -> Tensor:
        model = network()
        quantize_(model, QATConfig(config(element), step="prepare"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(activations()).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        quantize_(model, QATConfig(config(element), step="convert"))
        assert isinstance(model[0].weight, MXTensor)
        return model(activations())

    off, on = both(train)
    assert same_bits(off, on)


@each_element
def test_state_dict(element: Any) -> None:
    """Saved with the switch off and loaded with it on, and the other way round."""

    def saved() -> bytes:
        file = io.BytesIO()
        torch.save(quantized(element).state_dict(), file)
        return file.getvalue()

    def loaded(data: bytes) -> Tensor:
        model = network()
        model.load_state_dict(torch.load(io.BytesIO(data)), assign=True)
        return model(activations())

    off, on = both(saved)
    expected = quantized(element)(activations())
    assert same_bits(loaded(off), expected)
    with switch.enabled():
        assert same_bits(loaded(off), expected)
        assert same_bits(loaded(on), expected)
    assert same_bits(loaded(on), expected)


@each_element
def test_compile(element: Any) -> None:
    expected = quantized(element)(activations())
    with switch.enabled(), torch.no_grad():
        compiled = torch.compile(quantized(element), backend="aot_eager", fullgraph=True)
        assert same_bits(compiled(activations()), expected)


@pytest.mark.slow
# A warning of PyTorch about itself: its profile of dynamic sizes is off with the caches.
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning")
@each_element
def test_compile_by_inductor(element: Any, fresh_compiler: None) -> None:
    """TorchAO 0.18 alone can't on the CPU: Inductor has no ``float8_e8m0fnu`` there."""
    model = quantized(element)
    with torch.no_grad():
        expected = model(activations())
        with pytest.raises(torch._inductor.exc.InductorError, match="float8_e8m0fnu"):
            torch.compile(model, fullgraph=True)(activations())
        with switch.enabled():
            compiled = torch.compile(model, fullgraph=True)
            assert same_bits(compiled(activations()), expected)


@each_element
def test_export(element: Any) -> None:
    """A node a cast; from a file, the program needs the ops and no switch."""
    expected = quantized(element)(activations())
    with switch.enabled(), torch.no_grad():
        program = torch.export.export(quantized(element), (activations(),))
        program = program.run_decompositions({})
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        casts = [node for node in calls if str(node.target).startswith("aten_mx.")]
        # The last is the weight's, which the emulated multiplication dequantizes.
        names = ["quantize_mx", "dequantize_mx", "dequantize_mx"]
        assert [str(node.target).split(".")[1] for node in casts] == 2 * names
        swizzles = [node.kwargs.get("swizzle_type", 0) for node in casts]
        assert swizzles == 2 * [0, 0, 1]
        file = io.BytesIO()
        torch.export.save(program, file)
    file.seek(0)
    assert same_bits(torch.export.load(file).module()(activations()), expected)
