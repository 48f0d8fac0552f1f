"""Every private name of PyTorch that this package needs, and every workaround that relies on one.

No other module has one. Each says why it is needed and when it can go. This module has the names
of the dispatcher, ``compiler`` those of the compilers, ``dtensor`` those of DTensor. Each is still
needed on PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

# A name to write types with. It can go when torch.library exports it.
from torch._ops import OpOverload as OpOverload

# The conformance kit runs kernels under it. It can go when PyTorch exports it.
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

# What AOTAutograd traces with: to know that a call is traced, and to decompose without mutations.
# They can go when aot_autograd functionalizes what a decomposition does.
from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
from torch._subclasses.functional_tensor import dispatch_functionalize as dispatch_functionalize

# Validation stands at this key; the kernel below is called by the keys that come after it. They can
# go when torch.library has a way to call the next kernel, or with the operators in PyTorch itself.
BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
BELOW_BACKEND_SELECT = torch._C._dispatch_keyset_full_after(BACKEND_SELECT)

# Its presence among a call's keys tells that Python traces the call. It can go with the above.
PYTHON = torch._C.DispatchKey.Python

# The guard that torch.library's own kernels take. It can go with the validation in Python.
below_autograd = torch._C._AutoDispatchBelowAutograd

BACKEND_KEYS = tuple(
    sorted(
        name
        for name in torch._C.DispatchKey.__members__
        if f"Autograd{name}" in torch._C.DispatchKey.__members__
        and name not in ("Functionality", "Meta", "NestedTensor", "Other")
    )
)
"""Dispatch keys under which a device's kernel can be registered; PyTorch exports no list."""


def key_has_kernel(overload: str, dispatch_key: str) -> bool:
    """Whether an overload, such as ``aten_mx::quantize_mx.format``, has a kernel for a key.

    ``register_kernel`` must not cover a kernel silently. It can go when ``torch.library`` tells it.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload, dispatch_key)


def key_of_device(device_type: str) -> str:
    """The dispatch key of a device's kernels. It can go when ``torch.library`` tells that.

    Raises:
        RuntimeError: PyTorch has no device type of that name.
    """
    return torch._C._dispatch_key_for_device(device_type)


def registrations(overload: str) -> str:
    """The dispatcher's own text about an overload, which says where each kernel was registered.

    It can go when that can be asked otherwise; only ``aten_mx.kernels()`` shows it.
    """
    return torch._C._dispatch_dump(overload)


def remove_library(library: torch.library.Library) -> None:
    """Take away what a library registered, at once.

    A ``Library`` can otherwise only be dropped, and goes with the last reference to it. This can
    go when PyTorch makes it public.
    """
    library._destroy()


def clear_dispatch_cache(op: OpOverload) -> None:
    """Let Python's part of the dispatcher look for an overload's kernels anew.

    It keeps what it found before a kernel was registered (2.11 to 2.15). It can go when
    ``Library.impl`` clears it for every key.
    """
    op._dispatch_cache.clear()


def check_value(condition: torch.SymBool, message: Callable[[], str]) -> None:
    """Make a guard or a runtime assertion of a symbolic condition; raises ``ValueError``.

    ``torch._check``, which is documented, raises ``RuntimeError``. It can go when PyTorch documents
    a check that raises another error.
    """
    torch._check_value(condition, message)


def at_first_use(device_module: ModuleType, callback: Callable[[], Any]) -> None:
    """Call ``callback`` when PyTorch sets the device up, or now if that is done.

    It must not raise. It can go when ``torch.accelerator`` has such a hook.
    """
    device_module._lazy_call(callback)
