"""``aten_mx.integrations.torchao``: TorchAO's casts with the ops underneath, and the switch.

That the op's bytes are TorchAO's but for named differences is ``test_torchao.py``'s; here TorchAO
with the switch on must give the op's bytes. What is built on the casts is
``test_torchao_workflows.py``'s. The one input that tells the sides apart is a block of Inf: scale
byte 0xFF here, 247 in 0.18.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchao.prototype.moe_training import utils
from torchao.prototype.mx_formats import mx_tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao_peer import (
    bfloat16_maxima,
    both,
    each_element,
    each_format,
    each_input_dtype,
    each_mode,
    ours,
    random_blocks,
    same_bits,
    theirs,
)

import aten_mx
from aten_mx import compiler
from aten_mx.integrations import torchao as switch

E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
INF = torch.full((1, 32), torch.inf)

pytestmark = pytest.mark.usefixtures("switched_off")


def is_on(to_mx: Callable[..., Any] = mx_tensor.to_mx) -> bool:
    byte = to_mx(INF, E4M3, 32)[0].view(torch.uint8).item()
    assert byte in (0xFF, 247)
    return byte == 0xFF


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
