"""A device's own kernel runs under the default ``torch.compile``, whatever was imported first."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import run_python

# One process a case: what is under test is the state that imports and registrations leave behind.
PRELUDE = """
import sys
import torch
if "inductor first" in sys.argv:
    import torch._inductor.decomposition
import aten_mx

quantize_mx = torch.ops.aten_mx.quantize_mx
calls = []

def kernel(self, dim, block_size, dtype, scale_calculation_mode=0):
    calls.append(dtype)
    payload = torch.full(self.shape, 7, dtype=torch.uint8).view(dtype)
    scale = torch.zeros(self.shape[0], self.shape[1] // block_size, dtype=torch.uint8)
    return payload, scale.view(torch.float8_e8m0fnu)

def register():
    library = torch.library.Library("aten_mx", "IMPL")
    library.impl("quantize_mx", kernel, "CPU")
    return library

def base(x):
    return quantize_mx(x, -1, 32, torch.float8_e4m3fn)[0]

def by_name(x):
    return quantize_mx.format(x, -1, 32, "fp8_e4m3")[0]

def compiled_calls(function):
    torch._dynamo.reset()
    before = len(calls)
    output = torch.compile(function, fullgraph=True)(torch.ones(4, 64))
    assert len(calls) == before or (output.view(torch.uint8) == 7).all()
    return len(calls) - before
"""

IMPORT_ORDER = """
torch._inductor.config.force_disable_caches = True
print(compiled_calls(by_name))
library = register()
print(compiled_calls(base), compiled_calls(by_name))
library._destroy()
print(compiled_calls(base))
"""

PACKAGED = """
class Model(torch.nn.Module):
    def forward(self, x):
        return base(x), by_name(x), quantize_mx.format(x, -1, 32, "fp8_e5m2")[0]

torch._inductor.config.force_disable_caches = True
library = register()
x = torch.ones(4, 64)
program = torch.export.export(Model(), (x,))
path = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
model = torch._inductor.aoti_load_package(path)
before = len(calls)
outputs = model(x)
assert all((output.view(torch.uint8) == 7).all() for output in outputs)
print(len(calls) - before)
"""

CACHED = """
if "with kernel" in sys.argv:
    library = register()
print(compiled_calls(base))
"""


def run(program: str, *arguments: str, **environment: str) -> list[list[int]]:
    output = run_python(PRELUDE + program, *arguments, **environment)
    return [[int(word) for word in line.split()] for line in output.splitlines()]


@pytest.mark.parametrize(
    "order", [pytest.param("package first", marks=pytest.mark.slow), "inductor first"]
)
def test_the_kernel_is_called(order: str) -> None:
    """Without a kernel the emulated one is inlined; with one it runs once, by either overload."""
    assert run(IMPORT_ORDER, order) == [[0], [1, 1], [0]]


@pytest.mark.slow  # AOTInductor compiles everything in C++
def test_aotinductor_calls_the_kernel(tmp_path: Path) -> None:
    """By either overload, although its tracer decomposes every CompositeImplicit op."""
    assert run(PACKAGED, str(tmp_path / "model.pt2")) == [[3]]


@pytest.mark.slow  # three processes that compile; test_registry.py has it within one
def test_a_cache_on_disk_knows_the_registrations(tmp_path: Path) -> None:
    """Processes that share a cache directory, without and with a kernel, each run their own."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
    assert run(CACHED, "without kernel", **cache) == [[0]]
    assert run(CACHED, "with kernel", **cache) == [[1]]
    assert run(CACHED, "without kernel", **cache) == [[0]]
