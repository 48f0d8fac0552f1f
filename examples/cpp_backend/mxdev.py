"""The device ``mxdev``: builds and loads the C++ files of this folder, and names the device.

    import mxdev

    mxdev.load_device()     # torch.ones(2, device="mxdev") works
    mxdev.load_kernels()    # before `import aten_mx` or after it
    mxdev.load_scaled_mm()  # torch.nn.functional.scaled_mm of what they give

Libraries are built once and kept in ``$MXDEV_BUILD``, else in a folder of the user's own under the
system's temporary one. Only ``g++`` (or ``$CXX``) is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import fcntl
import getpass
import hashlib
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

NAME = "mxdev"
HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent


def build(source: str, *defines: str) -> Path:
    """Compile one file of this folder to a shared library, unless that was done before."""
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-std=c++20", "-O2", "-Wall"]
    command += [f"-isystem{TORCH / 'include'}", *(f"-D{define}" for define in defines)]
    command += [str(HERE / source), f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    # The library depends on all of this, so it is part of its name.
    content = [torch.__version__, *command, (HERE / source).read_text()]
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]
    user = f"mxdev_{getpass.getuser()}"
    folder = Path(os.environ.get("MXDEV_BUILD") or Path(tempfile.gettempdir()) / user)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / f"{Path(source).stem}_{digest}.so"
    with (folder / f"{library.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together build once
        if not library.exists():
            unfinished = library.with_suffix(".part")
            subprocess.run([*command, "-o", str(unfinished)], check=True)
            unfinished.replace(library)
    return library


class DeviceModule:
    """``torch.mxdev``: what PyTorch asks of an accelerator's Python module."""

    device = contextlib.nullcontext  # torch.mxdev.device(0): nothing to switch to

    @staticmethod
    def is_available() -> bool:
        """Whether there is such a device (torch.compile and opcheck ask)."""
        return True

    @staticmethod
    def device_count() -> int:
        """Number of devices."""
        return 1

    @staticmethod
    def current_device() -> int:
        """Index of the current device."""
        return 0

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """The dtypes that torch.autocast may cast to."""
        return [torch.bfloat16, torch.float16]

    # Random ops run on the CPU, whose generator PyTorch seeds, saves and restores by itself.

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Nothing to seed."""

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        """Nothing to save."""
        return torch.empty(0, dtype=torch.uint8)

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        """Nothing to restore."""


def load_device() -> None:
    """Make ``mxdev`` this process's accelerator. It cannot be undone."""
    torch.ops.load_library(build("device.cpp"))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, DeviceModule)
    atexit.register(_wait_for_backward, torch.zeros((), device=NAME, requires_grad=True))


def _wait_for_backward(leaf: torch.Tensor) -> None:
    """Let autograd's thread of this device drop what it still holds of the last ``backward()``.

    That thread takes the GIL to free the caller's ``contextvars``, after ``backward()`` has
    returned. A process that ends at that moment aborts: "terminate called without an active
    exception" (PyTorch 2.13 and 2.14, for any accelerator; pytorch/pytorch#190489). The thread
    works in order, so once it has freed the context of a last ``backward()``, it has freed all.
    """

    class Held:
        pass

    held = Held()
    freed = weakref.ref(held)
    context = contextvars.copy_context()
    context.run(contextvars.ContextVar("held").set, held)
    context.run(leaf.backward)
    del held, context
    while freed() is not None:
        time.sleep(0.001)


def load_kernels(dispatch_key: str = "PrivateUse1") -> ctypes.CDLL:
    """Register the kernels under a dispatch key.

    Returns:
        The library, for its two counters: ``quantize_mx_calls()`` and ``dequantize_mx_calls()``.
    """
    library = build("kernels.cpp", f"MX_DISPATCH_KEY={dispatch_key}")
    return _load(library, "quantize_mx", "dequantize_mx")


def load_scaled_mm() -> ctypes.CDLL:
    """Register the device's matrix multiply of MX operands, which TorchAO's MX linears call.

    Returns:
        The library, for its two counters: ``scaled_mm_calls()`` and ``scaled_mm_v2_calls()``.
    """
    return _load(build("scaled_mm.cpp"), "scaled_mm", "scaled_mm_v2")


def calls() -> dict[str, int]:
    """How often each kernel that is loaded has run."""
    return {kernel: count() for kernel, count in _counters.items()}


_counters: dict[str, Callable[[], int]] = {}


def _load(library: Path, *kernels: str) -> ctypes.CDLL:
    torch.ops.load_library(library)
    loaded = ctypes.CDLL(str(library))
    for kernel in kernels:
        counter = getattr(loaded, f"{kernel}_calls")
        counter.restype = ctypes.c_int64
        _counters[kernel] = counter
    return loaded
