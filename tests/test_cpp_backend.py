"""``examples/cpp_backend``: an out-of-tree device in C++, and its kernels as the CPU's.

Each case has a process of its own, since a device or kernel that is loaded stays loaded. On the
device most is asked by ``cpp_device_checks.py``, in one process.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support import run_pytest, run_python

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "cpp_backend"
FOLDERS = f"import sys; sys.path[:0] = [{str(EXAMPLE)!r}, {str(HERE)!r}]\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the example is built for Linux")


def run(program: str, builds: dict[str, str], *arguments: str) -> list[str]:
    """Lines that the program prints."""
    return run_python(FOLDERS + program, *arguments, **builds).splitlines()


# --- the device -----------------------------------------------------------------------------------

# The kernels come first here, before the ops that they implement are defined.
DEVICE_CHECKS = """
import mxdev
mxdev.load_device()
mxdev.load_kernels()
assert "aten_mx" not in sys.modules

import pytest
options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--color=no", "--show-capture=no"]
status = pytest.main([*options, sys.argv[1]])
print("exit status", int(status))
"""


@pytest.mark.proves("example device in C++")
def test_device(builds: dict[str, str]) -> None:
    """Bytes, errors, autograd, vmap, compilers and files; a failure there is printed here."""
    checks = str(HERE / "cpp_device_checks.py")
    output = run(DEVICE_CHECKS, builds | {"PYTEST_ADDOPTS": ""}, checks)
    assert output[-1] == "exit status 0", "\n".join(output)


@pytest.mark.proves("example device in C++")
def test_the_tests_of_the_contract(builds: dict[str, str]) -> None:
    """Pointed at the device as CONTRIBUTING.md says; the cases by name stand for all of them."""
    device = {"ATEN_MX_TEST_DEVICE": "mxdev", "ATEN_MX_TEST_IMPORT": "mxdev_autoload"}
    path = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
    result = run_pytest("-m", "contract", "test_cases.py", **builds, **device, PYTHONPATH=path)
    passed = re.fullmatch(r"(\d+) passed in .*", result.stdout.splitlines()[-1])
    assert passed, result.stdout + result.stderr
    assert int(passed[1]) >= 20


LATE_KERNELS = """
import mxdev
mxdev.load_device()
from cpp_device import Calls, check_same, to_device
from sample_calls import dequantize_samples, quantize_samples

samples = [*quantize_samples(), *dequantize_samples()]
expected = [sample.call() for sample in samples]

def check_all():
    for sample, results in zip(samples, expected, strict=True):
        check_same(sample.map(to_device).call(), results)

def kernels():
    import torch
    names = ("aten_mx::quantize_mx", "aten_mx::dequantize_mx")
    return [torch._C._dispatch_has_kernel_for_dispatch_key(n, "PrivateUse1") for n in names]

print(*kernels())
check_all()
mxdev.load_kernels()
print(*kernels())
calls = Calls()
check_all()
print(min(calls.new()) > 0)
"""


def test_device_before_and_after_it_has_kernels(builds: dict[str, str]) -> None:
    """The emulated kernel answers through the CPU fallback until kernels are loaded."""
    assert run(LATE_KERNELS, builds) == ["False False", "True True", "True"]


# --- the same kernels as the CPU's ----------------------------------------------------------------

CPU_KERNELS = """
import torch

order = sys.argv[1].split(", ")
for step in order:
    if step == "kernels":
        import mxdev
        library = mxdev.load_kernels("CPU")
    elif step == "inductor":
        import torch._inductor.decomposition
    else:
        import aten_mx

torch._inductor.config.force_disable_caches = True
quantize_mx, dequantize_mx = torch.ops.aten_mx.quantize_mx, torch.ops.aten_mx.dequantize_mx

def base(x):
    return quantize_mx(x, -1, 32, torch.float8_e4m3fn, 3)

def by_name(x):
    output, scale = quantize_mx.format(x, -1, 32, "fp4_e2m1")
    return dequantize_mx.format(output, scale, -1, 32, "fp4_e2m1", torch.float32)

from sample_calls import assert_same
x = torch.randn(4, 64)
for function in (base, by_name):
    expected = function(x)
    before = library.quantize_mx_calls(), library.dequantize_mx_calls()
    assert_same(torch.compile(function, fullgraph=True)(x), expected)
    print(library.quantize_mx_calls() - before[0], library.dequantize_mx_calls() - before[1])
"""
ORDERS = [
    "kernels, inductor, aten_mx",
    "kernels, aten_mx, inductor",
    "inductor, aten_mx, kernels",
    "aten_mx, kernels, inductor",
]


@pytest.mark.parametrize("order", ORDERS)
def test_cpu_kernels_under_the_default_compiler(order: str, builds: dict[str, str]) -> None:
    """Called once each, however the call names the format."""
    assert run(CPU_KERNELS, builds, order) == ["1 0", "1 1"]


COVERED = """
import torch, aten_mx, mxdev
from aten_mx import emulated

library = mxdev.load_kernels("CPU")

def call():
    before = library.quantize_mx_calls()
    torch.ops.aten_mx.quantize_mx(torch.ones(1, 32), -1, 32, torch.float8_e4m3fn)
    print(library.quantize_mx_calls() - before)

call()
try:
    aten_mx.register_kernel("quantize_mx", "CPU", emulated.quantize_mx)
except RuntimeError as error:
    print("kernels.cpp" in str(error))
handle = aten_mx.register_kernel("quantize_mx", "CPU", emulated.quantize_mx, override=True)
call()
handle.unregister()
call()
"""


def test_a_cpp_kernel_is_covered_and_restored(builds: dict[str, str]) -> None:
    """Refused without ``override``; taking the Python kernel away uncovers the C++ one."""
    assert run(COVERED, builds) == ["1", "True", "0", "1"]


CONFORMANCE = """
from aten_mx.__main__ import main
checks = ["golden", "codes", "layouts", "swizzled", "errors", "fakes", "autograd", "vmap"]
arguments = ["--device", "mxdev", "--import", "mxdev_autoload", "--checks", *checks, "compiled"]
print(main(["conformance", *arguments]))
"""


@pytest.mark.proves("example device in C++")
def test_conformance(builds: dict[str, str]) -> None:
    """All checks but the maxima, which take minutes here; ``test_device`` has as many values."""
    *_, summary, code = run(CONFORMANCE, builds)
    assert summary.startswith("mxdev: ")
    assert summary.endswith(" 0 failed")
    assert code == "0"
