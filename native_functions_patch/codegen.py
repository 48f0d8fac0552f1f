"""Runs PyTorch's code generators over the patched tree, and checks what they generate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

NATIVE = Path("aten/src/ATen/native")
AOTI = Path("torch/csrc/inductor/aoti_torch/generated")
NAMES = ("quantize_mx", "dequantize_mx")

# The generator of the Python bindings has no command line; core calls it from setup.py's helpers,
# which no wheel carries.
_PYTHON_BINDINGS = """
import sys
from tools.autograd import gen_python_functions, gen_annotated_fn_args
native, tags, out, autograd, signatures = sys.argv[1:]
gen_python_functions.gen(
    out, native, tags, autograd + "/deprecated.yaml", autograd + "/templates",
)
gen_annotated_fn_args.gen_annotated(native, tags, signatures, autograd)
"""

_QUANTIZE = "const at::Tensor & self, int64_t dim, int64_t block_size, "
_DEQUANTIZE = "const at::Tensor & self, const at::Tensor & scale, int64_t dim, int64_t block_size, "
_PAIR = "::std::tuple<at::Tensor,at::Tensor>"
# Signatures as C++ and Python callers see them: the RFC's, argument for argument.
CPP = (
    f"inline {_PAIR} quantize_mx({_QUANTIZE}at::ScalarType dtype, "
    "int64_t scale_calculation_mode=0)",
    f"inline {_PAIR} quantize_mx({_QUANTIZE}c10::string_view elem_format, "
    "int64_t scale_calculation_mode=0, int64_t swizzle_type=0)",
    f"inline at::Tensor dequantize_mx({_DEQUANTIZE}at::ScalarType dtype)",
    f"inline at::Tensor dequantize_mx({_DEQUANTIZE}c10::string_view elem_format, "
    "at::ScalarType dtype, int64_t swizzle_type=0)",
)
METHODS = (
    f"{_PAIR} quantize_mx(int64_t dim, int64_t block_size, at::ScalarType dtype, "
    "int64_t scale_calculation_mode=0) const;",
    "at::Tensor dequantize_mx(const at::Tensor & scale, int64_t dim, int64_t block_size, "
    "at::ScalarType dtype) const;",
)
PYTHON = (
    "quantize_mx(Tensor input, int64_t dim, int64_t block_size, ScalarType dtype, "
    "int64_t scale_calculation_mode=0)",
    "quantize_mx(Tensor input, int64_t dim, int64_t block_size, c10::string_view elem_format, "
    "int64_t scale_calculation_mode=0, *, int64_t swizzle_type=0)",
    "dequantize_mx(Tensor input, Tensor scale, int64_t dim, int64_t block_size, ScalarType dtype)",
    "dequantize_mx(Tensor input, Tensor scale, int64_t dim, int64_t block_size, "
    "c10::string_view elem_format, ScalarType dtype, *, int64_t swizzle_type=0)",
)


class CodegenError(Exception):
    """A generator failed, or generated something unexpected."""


def yaml_schemas(tree: Path) -> list[str]:
    """The patch's schemas, as torchgen reads them from the yaml."""
    from torchgen.gen import parse_native_yaml

    native = tree / NATIVE
    functions = parse_native_yaml(
        str(native / "native_functions.yaml"), str(native / "tags.yaml")
    ).native_functions
    schemas = [str(f.func) for f in functions if str(f.func.name.name) in NAMES]
    # autogen makes the out= variants of the four
    return [schema for schema in schemas if "(a!)" not in schema]


def check_schemas(tree: Path) -> str:
    """The yaml has the schemas that ``aten_mx.schema`` registers."""
    from aten_mx.schema import SCHEMAS

    found, expected = yaml_schemas(tree), list(SCHEMAS)
    if sorted(found) != sorted(expected):
        raise CodegenError(f"the yaml has {found}, aten_mx.schema {expected}")
    return f"{len(found)} schemas: names, defaults and result names"


def run_torchgen(tree: Path) -> str:
    """ATen's headers and registrations, into ``tree/generated``, as core's build makes them.

    Without ``--update-aoti-c-shim`` the generator refuses shim headers that it would write
    differently, so this also checks the patch's.
    """
    out = tree / "generated"
    arguments = ["--source-path", "aten/src/ATen", "--install-dir", str(out / "ATen")]
    _python(
        tree,
        *("-m", "torchgen.gen", *arguments, "--aoti-install-dir", str(AOTI)),
        "--per-operator-headers",
    )
    return f"{sum(1 for _ in out.rglob('*.h'))} headers"


def run_autograd(tree: Path) -> str:
    """Autograd's kernels and the Python bindings."""
    out = tree / "generated" / "autograd"
    out.mkdir(parents=True, exist_ok=True)
    inputs = [str(NATIVE / "native_functions.yaml"), str(NATIVE / "tags.yaml")]
    _python(tree, "-m", "tools.autograd.gen_autograd", *inputs, str(out), "tools/autograd")
    _python(tree, "-c", _PYTHON_BINDINGS, *inputs, str(out), "tools/autograd", str(out))
    return f"{sum(1 for _ in out.iterdir())} files"


def check_cpp_signatures(tree: Path) -> str:
    """Functions and methods of the generated headers."""
    aten = tree / "generated" / "ATen"
    functions = "".join((aten / "ops" / f"{name}.h").read_text() for name in NAMES)
    _require(functions, CPP)
    _require((aten / "core" / "TensorBody.h").read_text(), METHODS)
    return f"{len(CPP)} functions, {len(METHODS)} methods of the base overloads"


def check_python_signatures(tree: Path) -> str:
    """Signatures that the argument parser gets, and the named tuple's fields."""
    out = tree / "generated" / "autograd"
    bindings = "".join(p.read_text() for p in sorted(out.glob("python_torch_functions_*.cpp")))
    _require(bindings, [f'"{signature}' for signature in PYTHON])
    returns = (out / "python_return_types.cpp").read_text()
    fields = re.search(r"get_quantize_mx_structseq\(\) \{.*?\{ (.*?) \};", returns, re.DOTALL)
    names = re.findall(r'\{"(\w+)", ""\}', fields.group(1)) if fields else []
    if names != ["output", "scale"]:
        raise CodegenError(f"torch.return_types.quantize_mx has the fields {names}")
    return f"{len(PYTHON)} signatures, results named {' and '.join(names)}"


def check_autograd(tree: Path) -> str:
    """The ops have an autograd kernel that records nothing: outputs never require grad."""
    out = tree / "generated" / "autograd"
    kernels = "".join(p.read_text() for p in sorted(out.glob("VariableType_*.cpp")))
    for name in ("quantize_mx", "quantize_mx_format", "dequantize_mx", "dequantize_mx_format"):
        body = re.search(
            rf"\n\S* ?\S+ {name}\(c10::DispatchKeySet ks.*?\n\}}\n", kernels, re.DOTALL
        )
        if body is None:
            raise CodegenError(f"no autograd kernel of {name} was generated")
        if "grad_fn" in body.group() or "NotImplemented" in body.group():
            raise CodegenError(f"the autograd kernel of {name} records a node")
    return "4 kernels, none with a grad_fn"


def _require(text: str, expected: tuple[str, ...] | list[str]) -> None:
    for line in expected:
        if line not in text:
            raise CodegenError(f"not generated: {line}")


def _python(tree: Path, *arguments: str) -> None:
    # The tree's own torchgen, whose list of AOTInductor's ops the patch changes.
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise CodegenError((result.stderr or result.stdout).strip()[-2000:])
