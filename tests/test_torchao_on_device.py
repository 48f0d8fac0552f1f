"""``examples/torchao_on_device`` on ``examples/cpp_backend``: TorchAO 0.18 as it is, and patched.

Also ``rfc/torchao.patch`` by itself, on the CPU. Each run has a process of its own: a device, once
loaded, stays, and so does a TorchAO.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import TORCHAO_PATCH, run_python

ROOT = Path(__file__).parents[1]
CPP_BACKEND = ROOT / "examples" / "cpp_backend"
EXAMPLE = ROOT / "examples" / "torchao_on_device" / "run.py"

linux = pytest.mark.skipif(sys.platform != "linux", reason="the device is built for Linux")


def run_example(
    builds: dict[str, str], backend: str, *arguments: str, path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """The example with ``backend``, a module in ``path`` or of the C++ device."""
    folders = os.pathsep.join(map(str, (*path, CPP_BACKEND)))
    return subprocess.run(
        [sys.executable, str(EXAMPLE), backend, *arguments],
        env=os.environ | builds | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )


def lines(preference: str, steps: dict[str, str], product: str) -> list[str]:
    """What the example prints: two layers, of which each quantizes its input and multiplies."""
    ran = f"equal bits; ran 2 quantize_mx, 4 dequantize_mx, 2 {product}"
    return [f"{preference} {name} {step}: {ran}" for name in steps for step in steps[name].split()]


STEPS = {"fp8": "eager exported reloaded", "fp4": "eager exported"}


@linux
def test_torchao_as_it_is(builds: dict[str, str]) -> None:
    """``AUTO`` calls ``_scaled_mm`` for FP8 and ``_scaled_mm_v2`` for FP4."""
    result = run_example(builds, "mxdev_autoload")
    assert result.returncode == 0, result.stdout + result.stderr
    fp8, fp4 = ({name: STEPS[name]} for name in STEPS)
    expected = lines("auto", fp8, "scaled_mm") + lines("auto", fp4, "scaled_mm_v2")
    assert result.stdout.splitlines() == expected


@linux
def test_torchao_patched(builds: dict[str, str], patched: Path) -> None:
    """``TORCH``, and ``AUTO`` which means it here; training too."""
    result = run_example(builds, "mxdev_autoload", "--patched", path=(patched,))
    assert result.returncode == 0, result.stdout + result.stderr
    trained = "fp8 trained: equal bits; ran 6 quantize_mx, 6 dequantize_mx, 3 scaled_mm_v2"
    expected = []
    for preference in ("torch", "auto"):
        expected += [*lines(preference, STEPS, "scaled_mm_v2"), f"{preference} {trained}"]
    assert result.stdout.splitlines() == expected


BACKEND = """
import mxdev
mxdev.load_device()
mxdev.{}()
calls = mxdev.calls
"""


@linux
@pytest.mark.parametrize(
    ("loaded", "stdout", "stderr"),
    [
        ("load_scaled_mm", "auto fp8 eager: equal bits; ran 2 scaled_mm\n", ""),
        ("load_kernels", "", "scaled_mm"),  # the CPU, asked in its place, refuses
    ],
    ids=["quantize_mx", "scaled_mm"],
)
def test_without_a_kernel(
    loaded: str, stdout: str, stderr: str, builds: dict[str, str], tmp_path: Path
) -> None:
    """The example fails when either registration is missing, also where results are the same."""
    (tmp_path / "half_a_backend.py").write_text(BACKEND.format(loaded))
    result = run_example(builds, "half_a_backend", path=(tmp_path,))
    assert result.returncode == 1
    assert result.stdout.startswith(stdout)
    assert stderr in result.stderr


def test_no_line_names_a_device() -> None:
    """Neither the example with its model nor what the patch adds to TorchAO."""
    added = [line for line in TORCHAO_PATCH.read_text().splitlines() if re.match(r"\+[^+]", line)]
    for text in (EXAMPLE.read_text(), "\n".join(added)):
        assert not re.search(r"mxdev|privateuse|cuda|xpu|is_sm_", text, re.IGNORECASE)


# --- the patch on the CPU -------------------------------------------------------------------------

ON_THE_CPU = """
import itertools, sys
import torch, aten_mx, torchao
from aten_mx import reference
from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
from torchao.prototype.mx_formats.config import ScaleCalculationMode, _validate_kernel_preference
from torchao.prototype.mx_formats.mx_tensor import MXTensor, to_mx
from torchao.quantization import quantize_
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

E4M3, E5M2, FP4 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2
TORCH, AUTO, EMULATED = KernelPreference.TORCH, KernelPreference.AUTO, KernelPreference.EMULATED
torch.manual_seed(0)
x, weight = torch.randn(32, 64).bfloat16(), torch.randn(96, 64).bfloat16()

def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

def refused(call, error, text):
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit(f"no error: {text}")

# Without torch.quantize_mx, TORCH cannot and the others do as ever.
refused(lambda: MXTensor.to_mx(x, E4M3, kernel_preference=TORCH), AttributeError, "quantize_mx")
assert same(MXTensor.to_mx(x, E4M3, kernel_preference=AUTO).qdata, to_mx(x, E4M3, 32)[1])

def check():
    for element, mode, swizzled in itertools.product(
        (E4M3, E5M2, FP4, "fp6_e2m3", "fp6_e3m2"), ScaleCalculationMode, (False, True)
    ):
        mx = MXTensor.to_mx(
            x, element, 32, mode, kernel_preference=TORCH, is_swizzled_scales=swizzled
        )
        scale, payload = to_mx(x, element, 32, mode, swizzled)
        assert same(mx.qdata, payload)
        assert same(mx.scale, scale)
    for element in (E4M3, FP4):
        outputs = []
        for preference in (TORCH, EMULATED):
            model = torch.nn.Linear(64, 96).bfloat16()
            model.weight.data, model.bias.data = weight.clone(), weight[:, 0].clone()
            config = MXDynamicActivationMXWeightConfig(32, element, element, preference)
            quantize_(model, config)
            outputs.append(model(x).detach())
        torch.testing.assert_close(*outputs, rtol=2**-7, atol=2**-5)
        assert not torch.equal(outputs[0], torch.nn.functional.linear(x, weight, weight[:, 0]))
    results = []
    for preference in (TORCH, EMULATED):
        layer = MXFP8Linear(
            64, 96, bias=False, dtype=torch.bfloat16, kernel_preference=preference
        )
        layer.weight.data = weight.clone()
        leaf = x.clone().requires_grad_()
        output = layer(leaf)
        output.float().sum().backward()
        results.append((output.detach(), leaf.grad, layer.weight.grad))
    for ours, emulated in zip(*results):
        torch.testing.assert_close(ours, emulated, rtol=2**-7, atol=2**-5)

torch.nn.functional.scaled_mm = reference.scaled_mm  # PyTorch 2.13 has none on the CPU
aten_mx.install_torch_alias()
check()
aten_mx.remove_torch_alias()
torch.quantize_mx = torch.ops.aten_mx.quantize_mx  # takes arguments by the schemas, as core's would
check()

# AUTO is TORCH where there are kernels for both; the CPU has the product only.
MXTensor.to_mx(x, E4M3, kernel_preference=AUTO)
from torchao.prototype.mx_formats.utils import is_torch_preferred
cpu = torch.device("cpu")
answers = [is_torch_preferred(preference, cpu) for preference in (TORCH, AUTO, EMULATED)]
assert answers == [True, False, False], answers
kernel = aten_mx.emulated.quantize_mx
handle = aten_mx.register_kernel("quantize_mx", "CPU", kernel, override=True)
assert is_torch_preferred(AUTO, cpu)

for element in (E4M3, FP4):
    _validate_kernel_preference(TORCH, 32, element)
    refused(lambda: _validate_kernel_preference(TORCH, 16, element), AssertionError, "must be 32")
refused(lambda: _validate_kernel_preference(TORCH, 32, E5M2), AssertionError, "unsupported")
print(torchao.__file__)
"""


def test_patch_on_the_cpu(patched: Path) -> None:
    """Bytes of every cast, linear layers forward and backward, what is refused and what AUTO is."""
    output = run_python(ON_THE_CPU, PYTHONPATH=str(patched), ATEN_MX_CPU="off")
    assert Path(output.strip()).is_relative_to(patched)
