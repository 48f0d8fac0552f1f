"""``rfc/torchtitan.patch``: torchtitan's MXFP8 linears, gated on the ops, on any device.

The Makefile installs torchtitan without its dependencies, which are many, but for what these need.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from support import apply_patch, run_python

ROOT = Path(__file__).parents[1]
PATCH = ROOT / "rfc" / "torchtitan.patch"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the device is built for Linux")

PROGRAM = """
import sys
if sys.argv[1] == "device":
    import mxdev_autoload

import torch, aten_mx
aten_mx.install_torch_alias()
from torchtitan.components.quantization.mx import MXFP8Linear, MXFP8LinearConverter
from torchtitan.models.common.linear import Linear
from torchtitan.tools.utils import device_type

layer = Linear.Config(in_features=64, out_features=96, bias=False)
try:
    converter = MXFP8LinearConverter(MXFP8LinearConverter.Config(model_compile_enabled=True))
except ValueError as error:
    raise SystemExit(print("refused:", error))
linear = converter.convert(layer).build().to(device_type, torch.bfloat16)
assert type(linear) is MXFP8Linear
x = torch.randn(32, 64).to(device_type, torch.bfloat16).requires_grad_()
before = mxdev_autoload.calls()
linear(x).sum().backward()
after = mxdev_autoload.calls()
assert x.grad.isfinite().all() and linear.weight.grad.isfinite().all()
print({kernel: after[kernel] - before[kernel] for kernel in after})
"""


@pytest.fixture(scope="session")
def patched_titan(patched: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with both patched packages and the device."""
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = tmp_path_factory.mktemp("torchtitan")
    shutil.copytree(spec.submodule_search_locations[0], folder / "torchtitan")
    apply_patch(PATCH, folder)
    folders = (folder, patched, ROOT / "examples" / "cpp_backend")
    return os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])


def test_trains_on_the_device(patched_titan: str, builds: dict[str, str]) -> None:
    """Three products forward and backward, and a cast for each of their operands."""
    output = run_python(PROGRAM, "device", PYTHONPATH=patched_titan, **builds)
    assert output.endswith(
        "{'quantize_mx': 6, 'dequantize_mx': 6, 'scaled_mm': 0, 'scaled_mm_v2': 3}\n"
    )


def test_refused_without_kernels(patched_titan: str) -> None:
    """Nothing but the ops decides: on this machine without the device, none has both kernels."""
    output = run_python(PROGRAM, "", PYTHONPATH=patched_titan, ATEN_MX_CPU="off")
    assert "refused: MXFP8 needs kernels for quantize_mx and scaled_mm" in output
