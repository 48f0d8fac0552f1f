"""``aten_mx.integrations.torchao``: TorchAO's own code, with the ops underneath and without.

That the op's bytes are TorchAO's but for named differences is ``test_torchao.py``'s; here TorchAO
with the switch on must give the op's bytes, and its workflows the same bits as with it off.
The one input that tells the sides apart is a block of Inf: scale byte 0xFF here, 247 in 0.18.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import SCALAR_TYPES
from test_torchao import (
    PEER_FORMATS,
    bfloat16_maxima,
    each_format,
    each_input_dtype,
    each_mode,
    ours,
    random_blocks,
    theirs,
)
from torch import Tensor, nn
from torchao.prototype.moe_training import mxfp8_linear, utils
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig, mx_tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization import quantize_
from torchao.quantization.qat import QATConfig
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

import aten_mx
from aten_mx import compiler
from aten_mx.integrations import torchao as switch

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
EMULATED = KernelPreference.EMULATED
INF = torch.full((1, 32), torch.inf)
ELEMENTS = [SCALAR_TYPES.get(fmt, fmt) for fmt in PEER_FORMATS]

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=PEER_FORMATS)


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    """Nothing of one test is left on in the next."""
    assert not compiler.switches
    yield
    switch.disable()


def is_on(to_mx: Callable[..., Any] = mx_tensor.to_mx) -> bool:
    byte = to_mx(INF, E4M3, 32)[0].view(torch.uint8).item()
    assert byte in (0xFF, 247)
    return byte == 0xFF


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What it gives without the switch and with it."""
    off = function()
    with switch.enabled():
        return off, function()


def same_bits(a: Tensor, b: Tensor) -> bool:
    assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    a, b = (t.detach().contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


# --- the functions --------------------------------------------------------------------------------


@each_input_dtype
@pytest.mark.parametrize("swizzled", [False, True], ids=["plain", "swizzled"])
@each_mode
@each_format
def test_to_mx_gives_the_ops_bytes(fmt: str, mode: int, swizzled: bool, dtype: torch.dtype) -> None:
    """All of them, where TorchAO's differ too: NaN, Inf, subnormals, scale byte 0."""
    for blocks in (random_blocks(), bfloat16_maxima()[::7]):
        x = blocks.to(dtype)
        expected = ours(x, fmt, mode, swizzled)
        with switch.enabled():
            for got, want in zip(theirs(x, fmt, mode, swizzled), expected, strict=True):
                assert got.shape == want.shape
                assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("swizzled", [False, True], ids=["plain", "swizzled"])
@each_element
def test_dequantize_gives_torchaos_bits(element: Any, swizzled: bool, dtype: torch.dtype) -> None:
    """Transposed, sliced and viewed; in other dtypes than it was made of."""
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(1))
    x[3] *= 2.0**100
    mx = MXTensor.to_mx(x.to(dtype), element, is_swizzled_scales=swizzled)
    tensors = [mx, mx.t()]
    if element in (E4M3, FP4):  # of the others TorchAO 0.18 cuts the scale in two
        tensors += [mx[128:], mx[128:].t()]
    if not swizzled:
        tensors += [mx.view(2, 128, 384)]
        deep = MXTensor.to_mx(x.to(dtype).view(2, 128, 384), element)
        tensors += [deep, deep.view(256, 384), deep[1]]
    for tensor in tensors:
        for output_dtype in (None, torch.float32, torch.bfloat16):
            off, on = both(functools.partial(tensor.dequantize, output_dtype))
            assert same_bits(off, on)


def test_dequantize_of_one_column() -> None:
    """A linear layer with one output has such a weight, transposed: contiguous in either order."""
    mx = MXTensor.to_mx(torch.randn(1, 64, generator=torch.Generator().manual_seed(2)), E4M3)
    off, on = both(mx.t().dequantize)
    assert off.shape == on.shape == (64, 1)
    assert torch.equal(off, on)
    fp4 = MXTensor.to_mx(torch.ones(1, 64), FP4).t()
    off, on = both(fp4.dequantize)
    assert off.shape == (32, 2)  # its codes are taken apart along the wrong dimension
    assert torch.equal(on, torch.ones(64, 1))


def test_signatures_are_torchaos() -> None:
    """Names, order and defaults, whose enum is TorchAO's there and the package's here."""
    x = torch.linspace(-7, 7, 64).view(2, 32)
    for mode in ScaleCalculationMode:
        by_name = {"data_hp": x, "elem_dtype": E4M3, "block_size": 32, "scaling_mode": mode}
        expected = mx_tensor.to_mx(**by_name, is_swizzled_scales=True)
        for got, want in zip(
            switch.to_mx(**by_name, is_swizzled_scales=True), expected, strict=True
        ):
            assert same_bits(got, want)
    for got, want in zip(switch.to_mx(x, E4M3, 32), mx_tensor.to_mx(x, E4M3, 32), strict=True):
        assert same_bits(got, want)


def test_errors_are_the_ops() -> None:
    with switch.enabled():
        with pytest.raises(ValueError, match="size 33 of dim 1 must be a multiple of block_size"):
            MXTensor.to_mx(torch.ones(3, 33), E4M3)
        with pytest.raises(TypeError, match=r"got torch\.int16"):
            mx_tensor.to_mx(INF, torch.int16, 32)
        scale, payload = mx_tensor.to_mx(INF, E4M3, 32)
        with pytest.raises(ValueError, match=r"elem_dtype must be one of .*, got fp5"):
            mx_tensor.to_dtype(payload, scale, "fp5", 32, torch.float32)
        with pytest.raises(ValueError, match="scale must have shape"):
            mx_tensor.to_dtype(payload, scale.expand(3, 1), E4M3, 32, torch.float32)


# --- the switch -----------------------------------------------------------------------------------


def test_every_holder_is_switched() -> None:
    """Whoever has the function already, by whatever name, and whoever imports it later."""
    partial = functools.partial(mx_tensor.to_mx, elem_dtype=E4M3, block_size=32)
    holders = [
        mx_tensor.to_mx,
        utils.to_mx,  # imported by name into another module of TorchAO
        lambda *args: (MXTensor.to_mx(*args).scale,),
        lambda x, *_: partial(x),
        torch.compile(mx_tensor.to_mx, backend="eager"),
    ]
    assert not any(map(is_on, holders))
    code = mx_tensor.to_mx.__code__
    with switch.enabled():
        from torchao.prototype.moe_training.kernels.mxfp8.quant import to_mx as late

        assert all(map(is_on, [*holders, late]))
    assert mx_tensor.to_mx.__code__ is code
    assert not any(map(is_on, [*holders, late]))


def test_on_and_off_again() -> None:
    """Twice does nothing more; a context leaves what it found, also after an error."""
    switch.disable()
    assert not is_on()
    switch.enable()
    switch.enable()
    assert is_on()
    with switch.enabled():
        pass
    assert is_on()
    switch.disable()
    assert not is_on()
    with pytest.raises(ValueError, match="must be a multiple"), switch.enabled():
        is_on(lambda *_: mx_tensor.to_mx(INF, E4M3, 33))
    assert not is_on()


def test_compiled_functions_follow() -> None:
    """A graph made before isn't run after; compile caches on disk have another key."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def round_trip(x: Tensor) -> Tensor:
        return MXTensor.to_mx(x, E4M3).dequantize()

    assert "torchao" not in compiler.cache_tag().split("+")
    for _ in range(2):
        assert not round_trip(INF).isnan().any()
        with switch.enabled():
            assert "torchao" in compiler.cache_tag().split("+")
            assert round_trip(INF).isnan().all()


def newer_to_mx(
    data_hp: Tensor, elem_dtype: Any, block_size: int, scaling_mode: Any, swizzle_type: Any
) -> None:
    """As on TorchAO's main branch in 2026, by its parameters."""


@pytest.mark.parametrize(
    ("replacement", "found"),
    [
        (newer_to_mx, r"to_mx\(data_hp: .*, swizzle_type: .*"),
        (functools.partial(mx_tensor.to_mx), r"to_mx\(data_hp: .*"),
        (None, "to_mx missing"),
    ],
)
def test_unknown_signature(replacement: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with both signatures, and nothing is switched by half."""
    to_dtype = mx_tensor.to_dtype.__code__
    monkeypatch.setattr(mx_tensor, "to_mx", replacement)
    message = rf"torchao 0\.\d+.* has {found}, but .*is_swizzled_scales: .*nothing was switched"
    with pytest.raises(RuntimeError, match=message):
        switch.enable()
    assert mx_tensor.to_dtype.__code__ is to_dtype
    assert not compiler.switches


# --- TorchAO's workflows --------------------------------------------------------------------------


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


def test_float16_weights_too() -> None:
    """TorchAO refuses float16; the op reads it."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(4)).half()
    with pytest.raises(AssertionError, match="not supported yet"):
        MXTensor.to_mx(x, E4M3)
    with switch.enabled():
        mx = MXTensor.to_mx(x, E4M3)
        expected = aten_mx.quantize_mx(x)
        assert same_bits(mx.qdata, expected[0])
        assert mx.dequantize().dtype is torch.float16
