"""Kernels per dispatch key: register one, list them all.

One registration serves both overloads of an op: the kernel sees one normalized call, that of
``.format``. Each registered kernel has a ``torch.library.Library`` of its own, so that taking it
away uncovers what was there before, a C++ kernel too. The registry holds the libraries: a dropped
handle changes nothing.

Nothing here asks for a device: a kernel can be registered before its device exists.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aten_mx import emulated
from aten_mx.compiler import BACKEND_KEYS, forget_compiled
from aten_mx.formats import FORMAT_OF_DTYPE

OPS = ("quantize_mx", "dequantize_mx")
_registered: list[KernelHandle] = []


class KernelInfo(NamedTuple):
    """One row of :func:`kernels`."""

    op: str
    """``quantize_mx``, ``quantize_mx.format``, ``dequantize_mx`` or ``dequantize_mx.format``."""

    dispatch_key: str
    """The key that the kernel answers for; ``CompositeImplicitAutograd``: any key without one."""

    kernel: str
    """Who registered it: a Python function's module and name, or the file and line of C++ code."""

    compiled: str
    """What ``torch.compile`` makes of a call: ``inlined`` or ``one node``."""


class KernelHandle:
    """A registered kernel; calling the handle calls the kernel.

    Dropping the handle does not take the kernel away, :meth:`unregister` does.
    """

    def __init__(
        self,
        op: str,
        dispatch_key: str,
        fn: Callable[..., Any],
        supports: Callable[..., bool] | None,
    ) -> None:
        self.op = op
        self.dispatch_key = dispatch_key
        self.fn = fn
        functools.update_wrapper(self, fn)
        self._library: torch.library.Library | None = torch.library.Library("aten_mx", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's word on overriding: it was asked for
            for name, kernel in zip(_overloads(op), _ADAPTERS[op](fn, supports), strict=True):
                functools.update_wrapper(kernel, fn)
                self._library.impl(name, kernel, dispatch_key, allow_override=True)
        _registered.append(self)
        forget_compiled()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel, past the dispatcher and the validation."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        state = "" if self._library else ", unregistered"
        return f"KernelHandle({self.op!r}, {self.dispatch_key!r}, {_name(self.fn)}{state})"

    def unregister(self) -> None:
        """Take the kernel away; what it covered, a C++ kernel too, answers again.

        Safe to call twice, and in any order where several kernels lie over each other.
        """
        if self._library is None:
            return
        self._library._destroy()
        self._library = None
        _registered.remove(self)
        forget_compiled()


def register_kernel(
    op: str,
    dispatch_key: str,
    fn: Callable[..., Any] | None = None,
    *,
    supports: Callable[..., bool] | None = None,
    override: bool = False,
) -> Any:
    """Let ``fn`` answer for ``op`` on the devices of ``dispatch_key``.

    The kernel runs behind the validation, for both overloads of the op, in eager mode and in
    compiled and exported graphs, where the op is one node for these devices. It is called as::

        quantize_mx(self, dim, block_size, elem_format, scale_calculation_mode, *, swizzle_type)
            -> (output, scale)
        dequantize_mx(self, scale, dim, block_size, elem_format, dtype, *, swizzle_type) -> Tensor

    where ``dim`` is counted from the front and nothing is empty. A payload has the dtype of the
    ``.format`` overload (``uint8`` for ``fp4_e2m1``), the scale is ``torch.float8_e8m0fnu``, and
    outputs are laid out with ``dim`` innermost, whatever the strides of ``self``:
    ``torch.empty(moved_shape).movedim(-1, dim)``, ``moved_shape`` with ``dim``'s size last.
    ``check_kernel`` of :mod:`aten_mx.testing` tells whether it is right.

    Args:
        op: ``"quantize_mx"`` or ``"dequantize_mx"``.
        dispatch_key: PyTorch's name of the backend, such as ``"CPU"``, ``"CUDA"``, ``"XPU"`` or
            ``"PrivateUse1"``. The device need not exist yet.
        fn: the kernel; without it the result is a decorator.
        supports: called with the kernel's arguments; where it returns false the emulated kernel
            answers. ``None``: the kernel takes every valid call.
        override: replace a kernel that the key already has, until the new one is unregistered.

    Returns:
        A :class:`KernelHandle`, also from the decorator.

    Raises:
        ValueError: unknown ``op`` or ``dispatch_key``.
        TypeError: ``fn`` or ``supports`` cannot be called.
        RuntimeError: the key has a kernel and ``override`` is false.

    Functions compiled before are compiled anew at their next call, as a graph made under other
    registrations may hold the op inlined.

    Example::

        >>> import aten_mx, torch
        >>> from aten_mx import emulated
        >>> @aten_mx.register_kernel("quantize_mx", "PrivateUse1")
        ... def my_quantize(self, dim, block_size, elem_format, mode, *, swizzle_type):
        ...     return emulated.quantize_mx(
        ...         self, dim, block_size, elem_format, mode, swizzle_type=swizzle_type
        ...     )
        >>> [kernel.op for kernel in aten_mx.kernels() if kernel.dispatch_key == "PrivateUse1"]
        ['quantize_mx', 'quantize_mx.format']
        >>> my_quantize.unregister()
    """
    if op not in OPS:
        raise ValueError(f"register_kernel: op must be {' or '.join(OPS)}, got {op}")
    if dispatch_key not in BACKEND_KEYS:
        known = ", ".join(BACKEND_KEYS)
        raise ValueError(
            f"register_kernel: dispatch_key must be one of {known}, got {dispatch_key}"
        )
    for name, value in (("fn", fn), ("supports", supports)):
        if value is not None and not callable(value):
            raise TypeError(f"register_kernel: {name} must be callable, got {value!r}")
    if fn is None:
        return lambda function: register_kernel(
            op, dispatch_key, function, supports=supports, override=override
        )
    if not override:
        for overload in _overloads(op):
            if key_has_kernel(overload, dispatch_key):
                raise RuntimeError(
                    f"register_kernel: {overload} has a kernel for {dispatch_key} already, "
                    f"{_who(overload, dispatch_key)}; pass override=True to replace it"
                )
    return KernelHandle(op, dispatch_key, fn, supports)


def kernels() -> list[KernelInfo]:
    """List the kernels that answer now, for every overload and dispatch key.

    Returns:
        One :class:`KernelInfo` a kernel. An overload's emulated kernel comes last; it answers for
        all keys that aren't listed. ``.format`` without a kernel of its own calls the base
        overload's where that has one and knows the format.

    Example::

        >>> import aten_mx
        >>> aten_mx.kernels()[-1].dispatch_key
        'CompositeImplicitAutograd'
    """
    rows = []
    for op in OPS:
        for overload in _overloads(op):
            rows += [
                KernelInfo(overload, key, _who(overload, key), "one node")
                for key in BACKEND_KEYS
                if key_has_kernel(overload, key)
            ]
            kernel = f"{emulated.__name__}.{op}"
            rows.append(KernelInfo(overload, "CompositeImplicitAutograd", kernel, "inlined"))
    return rows


def _overloads(op: str) -> tuple[str, str]:
    return op, f"{op}.format"


def key_has_kernel(overload: str, dispatch_key: str) -> bool:
    """Whether an overload, such as ``quantize_mx.format``, has a kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten_mx::{overload}", dispatch_key)


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"


def _who(overload: str, dispatch_key: str) -> str:
    """The name of a kernel that the registry knows, else where it was registered."""
    op = overload.split(".", maxsplit=1)[0]
    for handle in reversed(_registered):
        if (handle.op, handle.dispatch_key) == (op, dispatch_key):
            return _name(handle.fn)
    dump = torch._C._dispatch_dump(f"aten_mx::{overload}")
    match = re.search(rf"^{dispatch_key}: (registered at .*?) ::", dump, re.MULTILINE)
    return match[1] if match else "registered elsewhere"


def _adapt_quantize(
    fn: Callable[..., Any], supports: Callable[..., bool] | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``fn`` as kernels of ``quantize_mx`` and ``quantize_mx.format``."""

    def named(
        self: Tensor,
        dim: int,
        block_size: int,
        elem_format: str,
        scale_calculation_mode: int = 0,
        *,
        swizzle_type: int = 0,
    ) -> tuple[Tensor, Tensor]:
        args = (self, dim % self.dim(), block_size, elem_format, scale_calculation_mode)
        if self.numel() == 0 or (supports and not supports(*args, swizzle_type=swizzle_type)):
            return emulated.quantize_mx(*args, swizzle_type=swizzle_type)
        outputs = fn(*args, swizzle_type=swizzle_type)
        outputs = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        if tuple(map(type, outputs)) != _TWO_TENSORS:
            _check_types("quantize_mx", fn, outputs, 2)
        return outputs

    def base(
        self: Tensor, dim: int, block_size: int, dtype: torch.dtype, scale_calculation_mode: int = 0
    ) -> tuple[Tensor, Tensor]:
        fmt = FORMAT_OF_DTYPE[dtype]
        output, scale = named(self, dim, block_size, fmt.name, scale_calculation_mode)
        return (output if fmt.payload_dtype is dtype else output.view(dtype)), scale

    return base, named


def _adapt_dequantize(
    fn: Callable[..., Any], supports: Callable[..., bool] | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``fn`` as kernels of ``dequantize_mx`` and ``dequantize_mx.format``."""

    def named(
        self: Tensor,
        scale: Tensor,
        dim: int,
        block_size: int,
        elem_format: str,
        dtype: torch.dtype,
        *,
        swizzle_type: int = 0,
    ) -> Tensor:
        if self.dtype is torch.float4_e2m1fn_x2:
            self = self.view(torch.uint8)
        args = (self, scale, dim % self.dim(), block_size, elem_format, dtype)
        if self.numel() == 0 or (supports and not supports(*args, swizzle_type=swizzle_type)):
            return emulated.dequantize_mx(*args, swizzle_type=swizzle_type)
        output: Tensor = fn(*args, swizzle_type=swizzle_type)
        if type(output) is not Tensor:
            _check_types("dequantize_mx", fn, (output,), 1)
        return output

    def base(self: Tensor, scale: Tensor, dim: int, block_size: int, dtype: torch.dtype) -> Tensor:
        return named(self, scale, dim, block_size, FORMAT_OF_DTYPE[self.dtype].name, dtype)

    return base, named


_TWO_TENSORS = (Tensor, Tensor)


def _check_types(op: str, fn: Callable[..., Any], outputs: tuple[Any, ...], count: int) -> None:
    """Raise unless ``outputs`` are ``count`` tensors, which may be of a subclass."""
    if len(outputs) != count or not all(isinstance(output, Tensor) for output in outputs):
        got = ", ".join(type(output).__name__ for output in outputs) or "nothing"
        expected = "a tuple (output, scale)" if count == 2 else "one tensor"
        raise TypeError(f"{op}: kernel {_name(fn)} returned {got}, expected {expected}")


_ADAPTERS = {"quantize_mx": _adapt_quantize, "dequantize_mx": _adapt_dequantize}
