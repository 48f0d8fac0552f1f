"""Compiles a launch for a target that need not be there: for tests and to read the code."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aten_mx.backends.triton.launch import Launch
from aten_mx.backends.triton.targets import Target

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.int16: "*i16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
}
_ALIGNMENT = 16


def compile_launch(launch: Launch, target: Target) -> Any:
    """Compile what ``launch.run()`` would, with every tensor taken to be aligned to 16 bytes.

    Args:
        launch: its tensors may be on meta.
        target: as the launch was made for.

    Returns:
        Triton's compiled kernel; ``.asm`` has ``ptx`` and ``cubin``, or ``amdgcn`` and ``hsaco``.
    """
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}

    def specialize(value: Any, path: tuple[int, ...]) -> Any:
        """The type of an argument, by the rules of Triton's just-in-time compiler."""
        if isinstance(value, tuple):
            return tuple(specialize(item, (*path, i)) for i, item in enumerate(value))
        if isinstance(value, Tensor):
            attributes[path] = [["tt.divisibility", _ALIGNMENT]]
            return _POINTERS[value.dtype]
        if value == 1:
            constants[path] = 1
            return "constexpr"
        if value % _ALIGNMENT == 0:
            attributes[path] = [["tt.divisibility", _ALIGNMENT]]
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"

    for i, param in enumerate(launch.kernel.params):
        value = launch.arguments[param.name]
        if param.is_constexpr:
            constants[i,] = value
            signature[param.name] = "constexpr"
        else:
            signature[param.name] = specialize(value, (i,))
    source = ASTSource(launch.kernel, signature, constants, attributes)
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    return triton.compile(source, target=gpu, options=launch.options)
