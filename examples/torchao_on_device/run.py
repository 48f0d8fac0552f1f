"""TorchAO's MX linears on the accelerator that is there. No line here or in TorchAO names it.

    python examples/torchao_on_device/run.py MODULE

MODULE brings a vendor's device into the process, as the one of ../cpp_backend does. Its function
``calls()`` tells how often the device's own kernels ran. If one did not run, the CPU computed the
same results in its place, and this ends with exit code 1.

TorchAO 0.18 runs as it is, with the op under its casts. With ``--patched`` it is one that carries
rfc/torchao.patch, on the PYTHONPATH, and calls ``torch.quantize_mx`` itself.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
from torchao.quantization import quantize_
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

import aten_mx
from aten_mx.integrations import torchao

ELEMENTS = {"fp8": torch.float8_e4m3fn, "fp4": torch.float4_e2m1fn_x2}
LAYERS = 2


def grid(*shape: int) -> Tensor:
    """Random numbers of few bits: their products are exact in float32, in any order of summing."""
    return torch.randint(-8, 9, shape).div(16).to(torch.bfloat16)


def network() -> nn.Module:
    """Two linear layers, the same ones every time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False))
    model.to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data = grid(*parameter.shape)
    return model


def infer(element: torch.dtype, preference: KernelPreference, device: torch.device) -> nn.Module:
    """The network with MX weights, quantized on the device."""
    model = network().to(device)
    config = MXDynamicActivationMXWeightConfig(
        activation_dtype=element, weight_dtype=element, kernel_preference=preference
    )
    quantize_(model, config)
    return model


def train(preference: KernelPreference, device: torch.device) -> tuple[Tensor, ...]:
    """One step of a linear layer: output, gradient of the input, gradient of the weight."""
    torch.manual_seed(1)
    layer = MXFP8Linear(
        64, 96, bias=False, dtype=torch.bfloat16, device=device, kernel_preference=preference
    )
    layer.weight.data = grid(96, 64).to(device)
    x = grid(32, 64).to(device).requires_grad_()
    output = layer(x)
    (output * grid(32, 96).to(device)).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    return output.detach(), x.grad, layer.weight.grad


class Log:
    """Runs things, and tells whether the device's kernels ran and the bits are right."""

    def __init__(self, calls: Callable[[], dict[str, int]]) -> None:
        self.calls = calls
        self.failed = False

    def run(
        self, name: str, casts: int, products: int, function: Callable[[], Any], expected: Any
    ) -> None:
        """One line; ``casts`` and ``products`` are how many kernels there must have been."""
        before = Counter(self.calls())
        results = function()
        after = Counter(self.calls())
        new = {kernel: after[kernel] - before[kernel] for kernel in after}
        if isinstance(results, Tensor):
            results, expected = (results,), (expected,)
        same = all(torch.equal(r.cpu(), e) for r, e in zip(results, expected, strict=True))
        multiplied = new.get("scaled_mm", 0) + new.get("scaled_mm_v2", 0)
        ran = new.get("quantize_mx", 0) == casts and multiplied == products
        self.failed |= not (same and ran)
        kernels = ", ".join(f"{count} {kernel}" for kernel, count in new.items() if count)
        print(f"{name}: {'equal' if same else 'DIFFERENT'} bits; ran {kernels or 'NO KERNEL'}")


def reloaded(program: torch.export.ExportedProgram) -> nn.Module:
    """The program from a file."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    module: nn.Module = torch.export.load(file).module()
    return module


def main() -> int:
    """Compare with TorchAO's own arithmetic on the CPU; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backend", help="module that loads the device")
    parser.add_argument("--patched", action="store_true", help="TorchAO carries rfc/torchao.patch")
    args = parser.parse_args()

    # First of all: the autograd engine counts devices when it starts.
    log = Log(importlib.import_module(args.backend).calls)
    device = torch.accelerator.current_accelerator()
    assert device is not None, f"{args.backend} loads no accelerator"

    cpu, emulated = torch.device("cpu"), KernelPreference.EMULATED
    x = grid(5, 64)
    expected = {name: infer(e, emulated, cpu)(x).detach() for name, e in ELEMENTS.items()}
    gradients = train(emulated, cpu)

    if args.patched:
        aten_mx.install_torch_alias()
        preferences = [KernelPreference.TORCH, KernelPreference.AUTO]
    else:
        torchao.enable()
        preferences = [KernelPreference.AUTO]

    x = x.to(device)
    for preference in preferences:
        for name, element in ELEMENTS.items():
            model = infer(element, preference, device)
            with torch.no_grad():
                program = torch.export.export(model, (x,))
                steps: dict[str, Callable[[Tensor], Tensor]] = {"eager": model}
                steps["exported"] = program.module()
                if name == "fp8":  # PyTorch 2.13 writes no float4_e2m1fn_x2 to a file
                    steps["reloaded"] = reloaded(program.run_decompositions({}))
                for step, function in steps.items():
                    case = f"{preference.value} {name} {step}"
                    log.run(case, LAYERS, LAYERS, partial(function, x), expected[name])
        if args.patched:  # 0.18 under AUTO trains by casts of a named vendor
            case = f"{preference.value} fp8 trained"
            log.run(case, 6, 3, partial(train, preference, device), gradients)
    return int(log.failed)


if __name__ == "__main__":
    sys.exit(main())
