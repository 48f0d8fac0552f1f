"""The checking mode, ``ATEN_MX_CHECK=1``: a kernel's results are compared with the description.

The variable is read at import. The check costs a few microseconds per call. It catches a wrong
shape, stride, dtype or device of an output, in Python and C++ kernels alike;
:mod:`aten_mx.testing` checks the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aten_mx import environment
from aten_mx.meta import Call, TensorSpec
from aten_mx.torch_compat import OpOverload, key_has_kernel, key_of_device

ENABLED = environment.read("CHECK", "0") != "0"


def check_outputs(op: OpOverload, call: Call, self: Tensor, results: Any) -> None:
    """Raise where ``results`` of ``op`` aren't the outputs that ``call`` describes.

    Raises:
        RuntimeError: names the op, the dispatch key, the output and the difference.
    """
    specs = call.outputs
    outputs = results if isinstance(results, tuple) else (results,)
    key = key_of_device(self.device.type)
    if not key_has_kernel(op.name(), key):
        key = "CompositeImplicitAutograd"
    prefix = f"{op.name().split('::')[1]}: the kernel for {key} returned"
    if len(outputs) != len(specs):
        raise RuntimeError(f"{prefix} {len(outputs)} outputs, expected {len(specs)}")
    for (name, spec), output in zip(specs.items(), outputs, strict=True):
        if difference := _difference(output, spec, self.device):
            raise RuntimeError(f"{prefix} {name} {difference}")


def _difference(output: Any, spec: TensorSpec, device: torch.device) -> str | None:
    if not isinstance(output, Tensor):
        return f"of type {type(output).__name__}, expected a tensor"
    for what, got, expected in (
        ("dtype", output.dtype, spec.dtype),
        ("shape", list(output.shape), spec.shape),
        ("stride", output.stride(), spec.stride),
        ("device", output.device, device),
    ):
        if got != expected:
            return f"of {what} {got}, expected {expected}"
    return None
