"""The native library without Python: it defines the ops itself and runs an AOTInductor package."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from support import run_python

from aten_mx import schema
from aten_mx.backends import cpu

PACKAGE = """
import sys
import torch
import aten_mx

class Model(torch.nn.Module):
    def forward(self, x):
        output, scale = torch.ops.aten_mx.quantize_mx(x * 2, -1, 32, torch.float8_e4m3fn, 3)
        codes, scale6 = torch.ops.aten_mx.quantize_mx.format(x, 0, 2, "fp6_e2m3")
        back = torch.ops.aten_mx.dequantize_mx(output, scale, -1, 32, torch.bfloat16)
        tiles = {"swizzle_type": 1}
        int8, swizzled = torch.ops.aten_mx.quantize_mx.format(x, -1, 32, "int8", 1, **tiles)
        args = (int8, swizzled, -1, 32, "int8", torch.float32)
        again = torch.ops.aten_mx.dequantize_mx.format(*args, **tiles)
        return output, scale, codes, scale6, back + 1, int8, swizzled, again

x = torch.arange(4 * 64).float().sub(100).div(7).reshape(4, 64)
model = Model()
torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path=sys.argv[1])
for output in model(x):
    print(bytes(output.contiguous().view(torch.uint8).flatten().tolist()).hex())
"""


def test_the_internal_schemas_in_cpp_are_those_of_python() -> None:
    source = (Path(cpu.__file__).parents[1] / "csrc" / "alone.cpp").read_text()
    texts = re.sub(r'"\s*"', "", source)  # strings broken over lines
    assert sorted(re.findall(r'"(\w+\(.*?)"', texts)) == sorted(schema.INTERNAL)


@pytest.mark.slow  # compiles twice; what Python runs of a package is in test_export.py
def test_a_package_runs_without_python(native_build: dict[str, str], tmp_path: Path) -> None:
    package, program = tmp_path / "model.pt2", tmp_path / "run_package"
    want = run_python(PACKAGE, str(package), **native_build)
    root = Path(torch.__file__).parent
    libraries = root / "lib"
    subprocess.run(
        [
            *(os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-w"),
            *(f"-isystem{root / 'include'}", str(Path(__file__).parent / "run_package.cpp")),
            *(f"-isystem{root / 'include/torch/csrc/api/include'}", f"-L{libraries}"),
            *(f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed"),
            *("-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-o", str(program)),
        ],
        check=True,
    )
    run = subprocess.run(
        [program, cpu.library_path(), package], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == want
