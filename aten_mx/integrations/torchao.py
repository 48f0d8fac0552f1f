"""TorchAO's MX casts as calls of the ops, so that TorchAO needs to know no device.

:func:`to_mx`, :func:`to_dtype` and :func:`dequantize` are drop-ins for TorchAO's. :func:`enable`
makes TorchAO itself call them, for every caller. Then the kernels of the tensor's device answer.

The bytes are those of TorchAO, except for the differences in ``docs/torchao.md``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from aten_mx import compiler
from aten_mx.formats import FORMAT_OF_DTYPE, FORMATS, ElementFormat
from aten_mx.functional import dequantize_mx, quantize_mx
from aten_mx.layout import SwizzleType
from aten_mx.scaling import ScaleCalculationMode

MODULE = "torchao.prototype.mx_formats.mx_tensor"
"""Where TorchAO defines them; everything else imports them from there."""

# By the format's name the op gives bytes, which is how MXTensor stores FP4.
_STORED_AS_BYTES: dict[Any, str] = {
    torch.float4_e2m1fn_x2: FORMAT_OF_DTYPE[torch.float4_e2m1fn_x2].name
}
_SWITCH = "torchao"


def to_mx(
    data_hp: Tensor,
    elem_dtype: torch.dtype | str,
    block_size: int,
    scaling_mode: ScaleCalculationMode | Any = ScaleCalculationMode.FLOOR,
    is_swizzled_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize along the last dimension: TorchAO 0.18's ``to_mx`` by ``quantize_mx``.

    Args:
        data_hp: as ``input`` of :func:`aten_mx.quantize_mx`: any strides, float16 too, where
            TorchAO's asks for contiguous float32 or bfloat16.
        elem_dtype: ``torch.float8_e4m3fn``, ``torch.float8_e5m2``, ``torch.float4_e2m1fn_x2``,
            ``"fp6_e2m3"``, ``"fp6_e3m2"``; also ``torch.int8``, which TorchAO does not have.
        block_size: elements that share a scale.
        scaling_mode: TorchAO's ``ScaleCalculationMode`` or this package's.
        is_swizzled_scales: lay the scale out in 128x4 tiles.

    Returns:
        scale, payload: **the scale first**, as TorchAO has them; the payload is ``uint8`` for FP6
        (one code per byte) and FP4 (two), else ``elem_dtype``.

    Raises:
        TypeError, IndexError, ValueError: as the op, where TorchAO's asserts.

    Example::

        >>> import torch
        >>> from aten_mx.integrations.torchao import to_mx
        >>> scale, payload = to_mx(torch.ones(2, 64), torch.float4_e2m1fn_x2, 32)
        >>> scale.shape, payload.shape, payload.dtype
        (torch.Size([2, 2]), torch.Size([2, 32]), torch.uint8)
    """
    payload, scale = quantize_mx(
        data_hp,
        -1,
        block_size,
        _STORED_AS_BYTES.get(elem_dtype, elem_dtype),
        scaling_mode,
        swizzle_type=is_swizzled_scales,
    )
    return scale, payload


def to_dtype(
    data_lp: Tensor,
    scale_e8m0: Tensor,
    elem_dtype: torch.dtype | str,
    block_size: int,
    target_dtype: torch.dtype,
) -> Tensor:
    """Dequantize: TorchAO 0.18's ``to_dtype`` by ``dequantize_mx``.

    Args:
        data_lp: payload as :func:`to_mx` gives it, a slice of it, or its transpose, by the strides.
        scale_e8m0: ``torch.float8_e8m0fnu``, not swizzled, one per block in the payload's order.
        elem_dtype: as for :func:`to_mx`.
        block_size: elements that share a scale.
        target_dtype: float32, bfloat16 or float16.

    Returns:
        A tensor of ``target_dtype`` in the payload's order, FP4 unpacked.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as the op.

    Example::

        >>> import torch
        >>> from aten_mx.integrations.torchao import to_dtype, to_mx
        >>> scale, payload = to_mx(torch.eye(2, 32), "fp6_e3m2", 32)
        >>> to_dtype(payload, scale, "fp6_e3m2", 32, torch.bfloat16)[:, :2]
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.bfloat16)
    """
    fmt = _format(elem_dtype)
    # By strides, because a slice isn't contiguous either. A single column holds no whole block.
    columns = data_lp.shape[-1] * fmt.codes_per_byte
    strided = not data_lp.is_contiguous() and data_lp.stride(-1) != 1
    dim = -2 if data_lp.dim() > 1 and (strided or columns % block_size) else -1
    shape = list(data_lp.shape)
    shape[dim] = shape[dim] * fmt.codes_per_byte // block_size
    # TorchAO keeps its old shape when it views the payload in another shape.
    if list(scale_e8m0.shape) != shape and scale_e8m0.numel() == math.prod(shape):
        scale_e8m0 = scale_e8m0.reshape(shape)
    return dequantize_mx(data_lp, scale_e8m0, dim, block_size, target_dtype, elem_format=fmt.name)


def dequantize(self: Any, output_dtype: torch.dtype | None = None) -> Tensor:
    """Dequantize: TorchAO 0.18's ``MXTensor.dequantize`` by ``dequantize_mx``, swizzled or not.

    Args:
        self: an ``MXTensor``, or its transpose.
        output_dtype: float32, bfloat16 or float16; ``None``: the dtype it was quantized from.

    Returns:
        A tensor of ``output_dtype`` in the order of ``self``.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as the op.

    Example::

        >>> import torch
        >>> from aten_mx.integrations.torchao import dequantize
        >>> from torchao.prototype.mx_formats.mx_tensor import MXTensor
        >>> x = MXTensor.to_mx(torch.eye(2, 32), torch.float8_e4m3fn, is_swizzled_scales=True)
        >>> dequantize(x.t())[:2].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    dtype = self.dtype if output_dtype is None else output_dtype
    if not self.is_swizzled_scales:
        return to_dtype(self.qdata, self.scale, self.elem_dtype, self.block_size, dtype)
    # The tiles are those of a matrix with the blocks along its rows.
    transposed = self.qdata.stride(-2) < self.qdata.stride(-1)
    payload, scale = self.qdata, self.scale
    if transposed:
        payload, scale = payload.transpose(-2, -1), scale.transpose(-2, -1)
    # A view of an MXTensor has the scale of the tensor it views, tiled by the rows of that one.
    tiled = payload.reshape(*scale.shape[:-2], -1, payload.shape[-1])
    output = dequantize_mx(
        tiled,
        scale,
        -1,
        self.block_size,
        dtype,
        elem_format=_format(self.elem_dtype).name,
        swizzle_type=SwizzleType.SWIZZLE_32_4_4,
    )
    output = output.reshape(*payload.shape[:-1], output.shape[-1])
    return output.transpose(-2, -1) if transposed else output


def enable() -> None:
    """Make TorchAO's MX casts call the ops, in this process, for every caller.

    ``to_mx``, ``to_dtype`` and ``MXTensor.dequantize`` keep their identity and get other code:
    code that imported, wrapped or stored one before calls the ops too, such as ``MXTensor.to_mx``.
    TorchAO's casts by a named kernel (such as ``MXFP8Dim0CastKernelChoice.TRITON``) do not change.
    Functions that were compiled before are compiled anew. Calling it again changes nothing.

    Raises:
        ModuleNotFoundError: no TorchAO.
        RuntimeError: TorchAO's functions have other signatures than those of 0.18. Then nothing is
            switched.

    Example::

        >>> import torch
        >>> from aten_mx.integrations import torchao
        >>> from torchao.prototype.mx_formats.mx_tensor import MXTensor
        >>> torchao.enable()
        >>> MXTensor.to_mx(torch.full((1, 32), 3.0), torch.float8_e4m3fn).qdata[0, 0].item()
        384.0
        >>> torchao.disable()
    """
    if _switched:
        return
    module = importlib.import_module(MODULE)
    found = {name: _find(module, name) for name in _CODE}
    for name, (ours, _) in _CODE.items():
        theirs = found[name]
        if not isinstance(theirs, FunctionType) or _signature(theirs) != _signature(ours):
            signature = inspect.signature(theirs) if callable(theirs) else " missing"
            version = importlib.import_module("torchao").__version__
            raise RuntimeError(
                f"torchao {version} has {name}{signature}, but aten_mx replaces {ours.__name__}"
                f"{inspect.signature(ours)}, that of torchao 0.18; nothing was switched"
            )
    for name, (_, code) in _CODE.items():
        _switched[found[name]] = found[name].__code__
        found[name].__code__ = code
    compiler.switches.add(_SWITCH)
    compiler.forget_compiled()


def disable() -> None:
    """Undo :func:`enable`: TorchAO is what it was. Nothing happens if it was not enabled."""
    if not _switched:
        return
    while _switched:
        theirs, code = _switched.popitem()
        theirs.__code__ = code
    compiler.switches.discard(_SWITCH)
    compiler.forget_compiled()


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """:func:`enable` for a ``with`` block; afterwards it is as before, on or off.

    Example::

        >>> import torch
        >>> from aten_mx.integrations import torchao
        >>> from torchao.prototype.mx_formats.mx_tensor import to_mx
        >>> inf = torch.full((1, 32), torch.inf)
        >>> with torchao.enabled():
        ...     scale, _ = to_mx(inf, torch.float8_e4m3fn, 32)
        >>> scale.view(torch.uint8), to_mx(inf, torch.float8_e4m3fn, 32)[0].view(torch.uint8)
        (tensor([[255]], dtype=torch.uint8), tensor([[247]], dtype=torch.uint8))
    """
    was_on = bool(_switched)
    enable()
    try:
        yield
    finally:
        if not was_on:
            disable()


def _format(elem_dtype: torch.dtype | str) -> ElementFormat:
    fmt = (
        FORMATS.get(elem_dtype) if isinstance(elem_dtype, str) else FORMAT_OF_DTYPE.get(elem_dtype)
    )
    if fmt is None:
        known = ", ".join(map(str, (*FORMATS, *FORMAT_OF_DTYPE)))
        raise ValueError(f"to_dtype: elem_dtype must be one of {known}, got {elem_dtype}")
    return fmt


def _find(module: Any, name: str) -> Any:
    for attribute in name.split("."):
        module = getattr(module, attribute, None)
    return module


def _signature(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Names, kinds and defaults; an enum's default by its name: TorchAO has its own enum."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, getattr(p.default, "name", p.default)) for p in parameters]


# What the switched functions execute. They see TorchAO's globals only, so they import.


def _to_mx(data_hp, elem_dtype, block_size, scaling_mode, is_swizzled_scales):  # type: ignore[no-untyped-def]
    from aten_mx.integrations.torchao import to_mx

    return to_mx(data_hp, elem_dtype, block_size, scaling_mode, is_swizzled_scales)


def _dequantize(self, output_dtype=None):  # type: ignore[no-untyped-def]
    from aten_mx.integrations.torchao import dequantize

    return dequantize(self, output_dtype)


def _to_dtype(data_lp, scale_e8m0, elem_dtype, block_size, target_dtype):  # type: ignore[no-untyped-def]
    from aten_mx.integrations.torchao import to_dtype

    return to_dtype(data_lp, scale_e8m0, elem_dtype, block_size, target_dtype)


_CODE: dict[str, tuple[Callable[..., Any], CodeType]] = {
    "to_mx": (to_mx, _to_mx.__code__),
    "to_dtype": (to_dtype, _to_dtype.__code__),
    "MXTensor.dequantize": (dequantize, _dequantize.__code__),
}
"""By the name in TorchAO's module: our function in its place, and the code that calls it."""
_switched: dict[Any, CodeType] = {}
"""TorchAO's functions with the code they had; empty while the switch is off."""
