"""What answers a call: validation at BackendSelect, then a device's kernel or the composite.

* **Autograd falls through.** The ops aren't differentiable, so outputs never require grad,
  whatever kernel answers, and no kernel needs an autograd registration of its own.
* **BackendSelect validates.** It sits below autograd and Python dispatch and above every backend
  key, so it runs before each kernel, C++ ones included, also under ``inference_mode``.
* **The composite** is CompositeImplicitAutograd: it answers on every device without a kernel, and
  compilers inline it. Traced, it runs without BackendSelect and so validates itself. That of
  ``.format`` calls the base overload where the device has a kernel for that one, so that a backend
  which registers nothing else is reached by both.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor, dispatch_functionalize

from aten_mx import checking, emulated
from aten_mx.emulated import emulate_dequantize, emulate_quantize
from aten_mx.meta import DequantizeCall, describe_dequantize, describe_quantize
from aten_mx.schema import LIB

_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_BELOW_BACKEND_SELECT = torch._C._dispatch_keyset_full_after(_BACKEND_SELECT)
_quantize_mx = torch.ops.aten_mx.quantize_mx
_dequantize_mx = torch.ops.aten_mx.dequantize_mx
_bitcast = torch.ops.aten_mx._bitcast.default


def device_has_kernel(op: torch._ops.OpOverload, device: torch.device) -> bool:
    """Whether ``device`` has a kernel of its own for ``op``, and not only the composite."""
    key = torch._C._dispatch_key_for_device(device.type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def _is_for_kernel(op: torch._ops.OpOverload, self: Tensor) -> bool:
    """Whether a tracer is about to inline a call that the device has a kernel for.

    AOTInductor's does (PyTorch 2.13): it takes its trace for an export after dispatch, where all
    CompositeImplicit ops are decomposed. An opaque op keeps the call there.
    """
    return type(self) is FunctionalTensor and device_has_kernel(op, self.device)


def quantize_mx_inlined(
    self: Tensor, dim: int, block_size: int, dtype: torch.dtype, scale_calculation_mode: int = 0
) -> tuple[Tensor, Tensor]:
    """``quantize_mx`` in plain PyTorch ops, whatever kernels there are."""
    call = describe_quantize(self, dim, block_size, dtype, scale_calculation_mode)
    return emulate_quantize(self, block_size, call)


def quantize_mx_composite(
    self: Tensor, dim: int, block_size: int, dtype: torch.dtype, scale_calculation_mode: int = 0
) -> tuple[Tensor, Tensor]:
    """``quantize_mx`` in plain PyTorch ops."""
    if not _is_for_kernel(_quantize_mx.default, self):
        return quantize_mx_inlined(self, dim, block_size, dtype, scale_calculation_mode)
    call = describe_quantize(self, dim, block_size, dtype, scale_calculation_mode)
    args = (self, dim, block_size, call.fmt.name, scale_calculation_mode, 0)
    output, scale = torch.ops.aten_mx._quantize_mx(*args)
    if call.fmt.payload_dtype is not dtype:
        output = _bitcast(output, dtype, call.dim)
    return output, scale


def quantize_mx_format_composite(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """``quantize_mx.format`` in plain PyTorch ops, or by the device's kernel of the base one."""
    call = describe_quantize(
        self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type=swizzle_type
    )
    if _is_for_kernel(_quantize_mx.format, self):
        args = (self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type)
        outputs: tuple[Tensor, Tensor] = torch.ops.aten_mx._quantize_mx(*args)
        return outputs
    dtype = call.fmt.dtype
    if dtype is None or swizzle_type or not device_has_kernel(_quantize_mx.default, self.device):
        return emulate_quantize(self, block_size, call, swizzle_type)
    output, scale = _quantize_mx.default(self, dim, block_size, dtype, scale_calculation_mode)
    if dtype is not call.output.dtype:
        output = _bitcast(output, call.output.dtype, call.dim)
    return output, scale


def dequantize_mx_inlined(
    self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype
) -> Tensor:
    """``dequantize_mx`` in plain PyTorch ops, whatever kernels there are."""
    call = describe_dequantize(self, scale, dim, block_size, None, dtype)
    return emulate_dequantize(self, scale, block_size, call)


def dequantize_mx_composite(
    self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype
) -> Tensor:
    """``dequantize_mx`` in plain PyTorch ops."""
    if not _is_for_kernel(_dequantize_mx.default, self):
        return dequantize_mx_inlined(self, scale, dim, block_size, dtype)
    call = describe_dequantize(self, scale, dim, block_size, None, dtype)
    args = (self, scale, dim, block_size, call.fmt.name, dtype, 0)
    output: Tensor = torch.ops.aten_mx._dequantize_mx(*args)
    return output


def dequantize_mx_format_composite(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> Tensor:
    """``dequantize_mx.format`` in plain PyTorch ops, or by the device's kernel of the base one."""
    call = describe_dequantize(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type
    )
    if _is_for_kernel(_dequantize_mx.format, self):
        args = (self, scale, dim, block_size, elem_format, dtype, swizzle_type)
        kept: Tensor = torch.ops.aten_mx._dequantize_mx(*args)
        return kept
    payload_dtype = call.fmt.dtype
    if (
        payload_dtype is None
        or swizzle_type
        or not device_has_kernel(_dequantize_mx.default, self.device)
    ):
        return emulate_dequantize(self, scale, block_size, call, swizzle_type)
    if self.dtype is not payload_dtype:
        self = _bitcast(self, payload_dtype, call.dim)
    output: Tensor = _dequantize_mx.default(self, scale, dim, block_size, dtype)
    return output


def _describe_dequantize_base(
    self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype
) -> DequantizeCall:
    return describe_dequantize(self, scale, dim, block_size, None, dtype)


def _validating(op: torch._ops.OpOverload, describe: Callable[..., Any]) -> Callable[..., Any]:
    def backend_select(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        call = describe(*args, **kwargs)
        # The guard: a kernel written in differentiable ops must not record them.
        with torch._C._AutoDispatchBelowAutograd():
            results = op.redispatch(keyset & _BELOW_BACKEND_SELECT, *args, **kwargs)
        if checking.ENABLED:
            checking.check_outputs(op, call, args[0], results)
        return results

    return backend_select


OVERLOADS: dict[torch._ops.OpOverload, tuple[Callable[..., Any], Callable[..., Any]]] = {
    _quantize_mx.default: (describe_quantize, quantize_mx_composite),
    _quantize_mx.format: (describe_quantize, quantize_mx_format_composite),
    _dequantize_mx.default: (_describe_dequantize_base, dequantize_mx_composite),
    _dequantize_mx.format: (describe_dequantize, dequantize_mx_format_composite),
}
"""Each overload with its validation and its composite."""

KEPT_WHOLE: set[type[Tensor]] = set()
"""Tensor subclasses that dispatch the ops themselves; the composite would hide the call from them.

Where the device has no kernel the dispatcher takes a CompositeImplicit one in place of autograd's,
which is above ``__torch_dispatch__``.
"""


def _inlining(op: torch._ops.OpOverload, composite: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(composite)
    def inline(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(self) not in KEPT_WHOLE:
            return composite(self, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(self, *args, **kwargs)

    return inline


for _op, (_, _composite) in OVERLOADS.items():
    LIB.impl(_op, torch.library.fallthrough_kernel, "Autograd")
    LIB.impl(_op, _inlining(_op, _composite), "CompositeImplicitAutograd")

_validation: list[torch.library.Library] = []


def add_python_validation() -> None:
    """Validate at BackendSelect, above what a C++ library may have registered there."""
    library = torch.library.Library("aten_mx", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's word on overriding
        for op, (describe, _) in OVERLOADS.items():
            library.impl(op, _validating(op, describe), "BackendSelect", with_keyset=True)
    _validation.append(library)


def remove_python_validation() -> None:
    """Take it away, for a C++ library that validates in its place."""
    while _validation:
        _validation.pop()._destroy()


def validates_in_python() -> bool:
    """Whether calls are validated by Python, and not by a C++ library in its place."""
    return bool(_validation)


add_python_validation()


def decomposition_table() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """The composites, for a caller who wants the ops inlined.

    Returns:
        A new dict from each overload to its composite, as ``aot_autograd``, ``make_fx`` and
        ``ExportedProgram.run_decompositions`` take it. The first two then inline the ops also on a
        device that has a kernel; ``run_decompositions`` (PyTorch 2.13) leaves them one node there.

    Example::

        >>> import aten_mx
        >>> sorted(str(op) for op in aten_mx.decomposition_table())[:2]
        ['aten_mx.dequantize_mx.default', 'aten_mx.dequantize_mx.format']
    """
    inlined: dict[torch._ops.OpOverload, Callable[..., Any]] = {
        _quantize_mx.default: quantize_mx_inlined,
        _quantize_mx.format: emulated.quantize_mx,
        _dequantize_mx.default: dequantize_mx_inlined,
        _dequantize_mx.format: emulated.dequantize_mx,
    }
    return {op: _without_mutations(function) for op, function in inlined.items()}


def _without_mutations(inlined: Callable[..., Any]) -> Callable[..., Any]:
    """The kernels reuse their temporaries in place, but AOTAutograd decomposes after it has
    taken mutations out of the graph; ``ExportedProgram`` does before, and cannot nest."""
    functional = dispatch_functionalize(inlined)

    @functools.wraps(inlined)
    def decomposition(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        function = inlined if isinstance(self, FunctionalTensor) else functional
        return function(self, *args, **kwargs)

    return decomposition
