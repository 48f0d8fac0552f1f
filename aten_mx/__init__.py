"""Microscaling (MX) quantization as PyTorch operators: one contract, the same bytes everywhere.

``torch.ops.aten_mx.quantize_mx`` and ``dequantize_mx`` are registered by importing this package;
:func:`quantize_mx` and :func:`dequantize_mx` are their documented front doors.
"""

import aten_mx.once  # isort: skip

# The order counts: schemas and fakes, then the emulated kernel (see schema.py), then vmap rules.
import aten_mx.schema  # isort: skip
from aten_mx.dispatch import decomposition_table  # isort: skip
import aten_mx.transforms  # isort: skip
import aten_mx.compiler  # isort: skip
import aten_mx.integrations  # noqa: F401  # isort: skip
from aten_mx.alias import install_torch_alias, remove_torch_alias
from aten_mx.backends.cpu import load_as_configured
from aten_mx.backends.triton.impl import register_at_first_use
from aten_mx.functional import dequantize_mx, quantize_mx
from aten_mx.layout import SwizzleType
from aten_mx.plugins import load_backends
from aten_mx.registry import KernelHandle, KernelInfo, kernels, register_kernel
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.version import __version__

__all__ = [
    "KernelHandle",
    "KernelInfo",
    "ScaleCalculationMode",
    "SwizzleType",
    "__version__",
    "decomposition_table",
    "dequantize_mx",
    "install_torch_alias",
    "kernels",
    "quantize_mx",
    "register_kernel",
    "remove_torch_alias",
]

load_as_configured()
load_backends()  # late: a backend's module imports this package
register_at_first_use()  # last: a key that has a kernel keeps it
