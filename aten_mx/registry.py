"""Kernels per dispatch key: register one, list them all.

One registration serves both overloads of an op: the kernel sees one normalized call, that of
``.format``. Each registered kernel has a ``torch.library.Library`` of its own. So when it is
unregistered, the kernel that was there before answers again, a C++ kernel too. The registry holds
the libraries, so a handle may be dropped.

Nothing here needs a device: a kernel can be registered before its device exists.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aten_mx.compiler import forget_compiled
from aten_mx.overloads import NAMESPACE, OPS, OVERLOADS, Overload, overloads_of
from aten_mx.torch_compat import BACKEND_KEYS, key_has_kernel, registrations, remove_library

NATIVE_SOURCE = "aten_mx/csrc/register.cpp"  # that binds the native CPU kernel
_CAPABILITIES = {"AVX512": "AVX-512", "AVX2": "AVX2"}  # PyTorch's names and the instruction sets'

_registered: list[KernelHandle] = []


class KernelInfo(NamedTuple):
    """One row of :func:`kernels`."""

    op: str
    """``quantize_mx``, ``quantize_mx.format``, ``dequantize_mx`` or ``dequantize_mx.format``."""

    dispatch_key: str
    """The key that the kernel answers for; ``CompositeImplicitAutograd``: any key without one."""

    kernel: str
    """What answers: ``emulated kernel``, ``native CPU kernel (AVX-512)``, ``Python function
    MODULE.NAME`` or ``C++ library``."""

    compiled: str
    """What ``torch.compile`` makes of a call: ``inlined`` or ``one node``."""

    source: str
    """The file and line of its code or of its registration; empty where they are unknown."""


class KernelHandle:
    """A registered kernel; calling the handle calls the kernel.

    Only :meth:`unregister` removes the kernel. The handle itself may be dropped.
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
        self._library: torch.library.Library | None = torch.library.Library(NAMESPACE, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about the override, which is intended
            for row in overloads_of(op):
                kernel = functools.update_wrapper(_adapt(row, fn, supports), fn)
                self._library.impl(row.handle, kernel, dispatch_key, allow_override=True)
        _registered.append(self)
        forget_compiled()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel, past the dispatcher and the validation."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        state = "" if self._library else ", unregistered"
        return f"KernelHandle({self.op!r}, {self.dispatch_key!r}, {_name(self.fn)}{state})"

    def unregister(self) -> None:
        """Remove the kernel; the one that it replaced, a C++ kernel too, answers again.

        Safe to call twice, and in any order where several kernels replaced each other.
        """
        if self._library is None:
            return
        remove_library(self._library)
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

    Functions that were compiled before are compiled anew at their next call, because their graphs
    may hold the op inlined.

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
        for row in overloads_of(op):
            if key_has_kernel(row.qualified_name, dispatch_key):
                raise RuntimeError(
                    f"register_kernel: {row.name} has a kernel for {dispatch_key} already, "
                    f"{_describe(row, dispatch_key)}; pass override=True to replace it"
                )
    return KernelHandle(op, dispatch_key, fn, supports)


def registered() -> list[KernelHandle]:
    """The handles of all kernels that are registered, in the order of their registration."""
    return list(_registered)


def kernels() -> list[KernelInfo]:
    """List the kernels that answer now, for every overload and dispatch key.

    Returns:
        One :class:`KernelInfo` per kernel. An overload's emulated kernel comes last; it answers for
        all keys that aren't listed. ``.format`` without a kernel of its own calls the base
        overload's kernel, where there is one that knows the format.

    Example::

        >>> import aten_mx
        >>> aten_mx.kernels()[-1].dispatch_key
        'CompositeImplicitAutograd'
    """
    rows = []
    for row in OVERLOADS:
        rows += [_info(row, key) for key in BACKEND_KEYS if key_has_kernel(row.qualified_name, key)]
        source = _source(row.emulate)
        key = "CompositeImplicitAutograd"
        rows.append(KernelInfo(row.name, key, "emulated kernel", "inlined", source))
    return rows


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"


def _info(row: Overload, dispatch_key: str) -> KernelInfo:
    """What answers for a key that has a kernel."""
    for handle in reversed(_registered):
        if (handle.op, handle.dispatch_key) == (row.op, dispatch_key):
            kernel, source = f"Python function {_name(handle.fn)}", _source(handle.fn)
            break
    else:
        dump = registrations(row.qualified_name)
        match = re.search(rf"^{dispatch_key}: registered at (.*?) ::", dump, re.MULTILINE)
        source = match[1] if match else ""
        kernel = _kind(source)
    return KernelInfo(row.name, dispatch_key, kernel, "one node", source)


def _describe(row: Overload, dispatch_key: str) -> str:
    info = _info(row, dispatch_key)
    return f"{info.kernel} ({info.source})" if info.source else info.kernel


def _kind(source: str) -> str:
    """Name a kernel that this registry did not register, by the file that registered it."""
    file = source.rpartition(":")[0]
    if file.endswith(NATIVE_SOURCE):
        capability = torch.backends.cpu.get_cpu_capability()
        return f"native CPU kernel ({_CAPABILITIES.get(capability, 'portable')})"
    return "Python function" if file.endswith(".py") else "C++ library"


def _source(fn: Callable[..., Any]) -> str:
    """The file and line of a Python function, through its decorators; empty for other callables."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _adapt(
    row: Overload, fn: Callable[..., Any], supports: Callable[..., bool] | None
) -> Callable[..., Any]:
    """``fn``, which takes normalized calls, as a kernel of one overload; it runs validated."""
    describe, tensor_count = row.describe, row.tensors
    several = len(row.returns) > 1
    expected = [Tensor] * len(row.returns)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        call, tensors = describe(*args, **kwargs), args[:tensor_count]
        if tensors[0].dtype is torch.float4_e2m1fn_x2:
            tensors = (tensors[0].view(torch.uint8), *tensors[1:])
        arguments, keywords = call.arguments, call.keywords
        if tensors[0].numel() == 0 or (
            supports is not None and not supports(*tensors, *arguments, **keywords)
        ):
            return row.emulate(*tensors, call)
        results = fn(*tensors, *arguments, **keywords)
        outputs = tuple(results) if several and isinstance(results, tuple | list) else (results,)
        if list(map(type, outputs)) != expected:
            _check_types(row, fn, outputs)
        outputs = call.typed(outputs)
        return outputs if several else outputs[0]

    return kernel


def _check_types(row: Overload, fn: Callable[..., Any], outputs: tuple[Any, ...]) -> None:
    """Raise unless ``outputs`` are as many tensors as the op returns; subclasses are tensors."""
    if len(outputs) == len(row.returns) and all(isinstance(output, Tensor) for output in outputs):
        return
    got = ", ".join(type(output).__name__ for output in outputs) or "nothing"
    several = len(row.returns) > 1
    expected = f"a tuple ({', '.join(row.returns)})" if several else "one tensor"
    raise TypeError(f"{row.op}: kernel {_name(fn)} returned {got}, expected {expected}")
