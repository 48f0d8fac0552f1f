"""Which calls the Triton kernels take, and how they answer. Triton is imported when they run."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aten_mx import environment
from aten_mx.backends.triton.targets import BLOCK_SIZES, Target, constants
from aten_mx.layout import SwizzleType
from aten_mx.meta import dequantize_call, quantize_call
from aten_mx.overloads import overloads_of
from aten_mx.registry import register_kernel
from aten_mx.torch_compat import at_first_use, key_has_kernel
from aten_mx.validation import check_dequantize, check_quantize

if TYPE_CHECKING:
    from aten_mx.backends.triton.launch import Launch

SETTINGS = ("auto", "off")
DEVICES = {"CUDA": torch.cuda, "XPU": torch.xpu}
"""The dispatch keys that the kernels answer for, with their modules; ROCm's is CUDA too."""

_OLDEST = (3, 6)


def register_at_first_use() -> None:
    """Register the kernels once a device is first used, as ``ATEN_MX_TRITON`` says.

    It is ``auto`` (the default) or ``off``. Until then nothing of Triton is imported.

    Raises:
        ValueError: ``ATEN_MX_TRITON`` has another value than the two.
    """
    if environment.read("TRITON", "auto", SETTINGS) == "off":
        return
    for key, module in DEVICES.items():
        # Runs when PyTorch sets the device up, or now if that is done. It mustn't raise.
        at_first_use(module, functools.partial(register, key))


def register(key: str) -> bool:
    """Register the kernels for a dispatch key, where Triton is there and the key has none.

    Returns:
        Whether they now answer for both ops.
    """
    fault = triton_fault()
    if fault is not None:
        logging.getLogger("aten_mx").info("the emulated kernel answers on %s: %s", key, fault)
        return False
    answers = True
    for op, fn, supports in KERNELS:
        if any(key_has_kernel(row.qualified_name, key) for row in overloads_of(op)):
            answers = False
        else:
            register_kernel(op, key, fn, supports=supports)
    return answers


def triton_fault() -> str | None:
    """Why the kernels cannot be used here, or ``None``; imports Triton."""
    hint = 'pip install "aten_mx[triton]"'
    try:
        import triton
    except ImportError as error:
        return f"Triton cannot be imported ({error}); {hint}"
    if tuple(map(int, triton.__version__.split(".")[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return f"Triton {triton.__version__} is older than {oldest}; {hint}"
    return None


def supports_quantize(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int,
    *,
    swizzle_type: int,
) -> bool:
    """Whether the fused kernel takes this call: only the block size decides."""
    return block_size in BLOCK_SIZES


def supports_dequantize(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int,
) -> bool:
    """Whether the fused kernel takes this call."""
    return block_size in BLOCK_SIZES


def quantize_mx(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int = 0,
    *,
    swizzle_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """Fused ``quantize_mx.format``: see :func:`aten_mx.quantize_mx` for the semantics.

    Tensors are on a device that Triton compiles for; in Triton's interpreter
    (``TRITON_INTERPRET=1``) they may be on the CPU.

    Returns:
        output, scale: dtypes and layout as ``torch.ops.aten_mx.quantize_mx.format`` gives them.

    Raises:
        TypeError, IndexError, ValueError: as the op; ValueError for a block size that isn't fused.
    """
    _check_block_size("quantize_mx", block_size)
    args = (self, dim, block_size, elem_format, scale_calculation_mode)
    check_quantize(*args, swizzle_type=swizzle_type)
    return run_quantize(*args, swizzle_type=swizzle_type)


def dequantize_mx(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int = 0,
) -> Tensor:
    """Fused ``dequantize_mx.format``: see :func:`aten_mx.dequantize_mx` for the semantics.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as the op; ValueError for a block size
            that isn't fused.
    """
    _check_block_size("dequantize_mx", block_size)
    args = (self, scale, dim, block_size, elem_format, dtype)
    check_dequantize(*args, swizzle_type=swizzle_type)
    return run_dequantize(*args, swizzle_type=swizzle_type)


def run_quantize(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int,
    *,
    swizzle_type: int,
) -> tuple[Tensor, Tensor]:
    """The kernel that is registered: it is called behind the validation, and validates nothing."""
    target = _target(self.device)
    args = (self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type, target)
    launch, output, scale = prepare_quantize(*args)
    if launch is not None:
        with _device_guard(self.device):
            launch.run()
    return output, scale


def run_dequantize(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    *,
    swizzle_type: int,
) -> Tensor:
    """The kernel that is registered, as :func:`run_quantize`."""
    target = _target(self.device)
    args = (self, scale, dim, block_size, elem_format, dtype, swizzle_type, target)
    launch, output = prepare_dequantize(*args)
    if launch is not None:
        with _device_guard(self.device):
            launch.run()
    return output


KERNELS: tuple[tuple[str, Callable[..., Any], Callable[..., bool]], ...] = (
    ("quantize_mx", run_quantize, supports_quantize),
    ("dequantize_mx", run_dequantize, supports_dequantize),
)


def prepare_quantize(
    self: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    scale_calculation_mode: int,
    swizzle_type: int,
    target: Target,
) -> tuple[Launch | None, Tensor, Tensor]:
    """Allocate a valid call's outputs and make the launch; ``None``: nothing to write.

    Example::

        >>> import torch
        >>> from aten_mx.backends.triton import impl
        >>> x = torch.empty(64, 4096, dtype=torch.bfloat16, device="meta")
        >>> launch = impl.prepare_quantize(x, 1, 32, "fp8_e4m3", 0, 0, impl.target_of("cuda", 90))
        >>> launch[0].grid, launch[0].num_warps
        ((256,), 1)
    """
    from aten_mx.backends.triton.launch import quantize_launch

    call = quantize_call(
        self, dim, block_size, elem_format, scale_calculation_mode, swizzle_type=swizzle_type
    )
    output, scale = call.output.empty(self.device), call.scale.empty(self.device)
    if scale.numel() == 0:
        return None, output, scale
    launch = quantize_launch(
        self.detach().resolve_neg(),
        output.view(torch.uint8),
        scale.view(torch.uint8),
        call.dim,
        block_size,
        constants(call.fmt),
        scale_calculation_mode,
        swizzle_type == SwizzleType.SWIZZLE_32_4_4,
        target,
    )
    return launch, output, scale


def prepare_dequantize(
    self: Tensor,
    scale: Tensor,
    dim: int,
    block_size: int,
    elem_format: str,
    dtype: torch.dtype,
    swizzle_type: int,
    target: Target,
) -> tuple[Launch | None, Tensor]:
    """Allocate a valid call's output and make the launch; ``None``: nothing to write."""
    from aten_mx.backends.triton.launch import dequantize_launch

    call = dequantize_call(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type=swizzle_type
    )
    output = call.output.empty(self.device)
    if output.numel() == 0:
        return None, output
    payload = self.detach()
    launch = dequantize_launch(
        payload if call.fmt.twos_complement else payload.view(torch.uint8),
        scale.detach().view(torch.uint8),
        output,
        call.dim,
        block_size,
        constants(call.fmt),
        swizzle_type == SwizzleType.SWIZZLE_32_4_4,
        target,
    )
    return launch, output


def target_of(backend: str, arch: int | str) -> Target:
    """Triton's target of that name, such as ``("cuda", 90)`` or ``("hip", "gfx950")``."""
    return Target(backend, arch, 64 if backend == "hip" else 32, backend not in ("cuda", "hip"))


@functools.cache
def _target(device: torch.device) -> Target:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return target_of("interpreter", "")
    if device.type == "cpu":
        raise RuntimeError("the Triton kernels take CPU tensors only under TRITON_INTERPRET=1")
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        return target_of("cuda", 10 * major + minor)
    if device.type == "cuda":
        return target_of("hip", torch.cuda.get_device_properties(device).gcnArchName.split(":")[0])
    return target_of("xpu", "")


def _device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    if device.type == "cpu":
        return nullcontext()
    return torch.accelerator.device_index(device.index)


def _check_block_size(op: str, block_size: int) -> None:
    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"{op}: the Triton kernel takes block sizes {sizes}, got {block_size}")
