"""A smoke test without a compiler: a device made of Python, with a kernel for ``quantize_mx``.

Its tensors hold a CPU tensor as ``host``. PyTorch's support for such devices is experimental: they
have no views, so use them to try dispatch, tracing and export, not values along other dims. For a
real device see ``examples/cpp_backend``.
"""

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import aten_mx
from aten_mx import emulated

_setup_privateuseone_for_python_backend("pydevice")
aten = torch.library.Library("aten", "IMPL")


def on_device(host):
    """A device tensor that holds ``host``."""
    tensor = torch._C._acc.create_empty_tensor(host.shape, host.dtype)
    tensor.host = host
    return tensor


@torch.library.impl(aten, "empty_strided", "PrivateUse1")
def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return on_device(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl(aten, "_copy_from", "PrivateUse1")
def copy_from(source, target, non_blocking=False):
    getattr(target, "host", target).copy_(getattr(source, "host", source))
    return target


@aten_mx.register_kernel("quantize_mx", "PrivateUse1")
def quantize(self, dim, block_size, elem_format, mode, *, swizzle_type):
    """A device would run its own code here."""
    args = (self.host, dim, block_size, elem_format, mode)
    output, scale = emulated.quantize_mx(*args, swizzle_type=swizzle_type)
    return on_device(output), on_device(scale)
