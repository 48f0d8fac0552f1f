"""What the tests of the specification (marker ``contract``) run on: a device and its kernels.

``ATEN_MX_TEST_DEVICE=cuda pytest -m contract`` points them at a device, and
``ATEN_MX_TEST_IMPORT=module[:function]`` imports a backend first, as ``conformance --import`` does.
On the CPU, ``ATEN_MX_TEST_CPU`` is ``off`` for the emulated kernel (the default), ``require`` for
the native kernel, or ``triton`` for the Triton kernels in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

DEVICE = os.environ.get("ATEN_MX_TEST_DEVICE", "cpu")
BACKEND = os.environ.get("ATEN_MX_TEST_IMPORT")
CPU = os.environ.get("ATEN_MX_TEST_CPU", "off")
KERNEL = (
    {"off": "emulated", "require": "native CPU", "triton": "Triton, interpreted"}[CPU]
    if DEVICE == "cpu"
    else DEVICE
)
"""The name that the last lines of a run show."""


def cpu_alone(reason: str) -> pytest.MarkDecorator:
    """A test of the specification that no other device can run, and why."""
    return pytest.mark.skipif(DEVICE != "cpu", reason=reason)


def on_device(tensor: Tensor, device: str = DEVICE) -> Tensor:
    """All of the tensor's memory on the device: strides and gaps stay as they are."""
    if tensor.device.type == torch.device(device).type:
        return tensor
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    moved = memory.to(device)
    return moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
