"""The Triton kernels without a GPU: bytes in the interpreter, machine code, registration."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import load_core, run_python, run_tests_of_the_contract

import aten_mx
import native_functions_patch
from aten_mx import registry
from aten_mx.backends.triton import impl
from aten_mx.backends.triton.ahead import compile_launch
from aten_mx.dispatch import OVERLOADS
from aten_mx.formats import FORMATS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import codegen  # noqa: E402

CHECKS = (
    "check_values",
    "check_golden",
    "check_codes",
    "check_layouts",
    "check_block_sizes",
    "check_core",
)
# By default each half of the products runs under one of the two; slow: all under both.
HALF, WHOLE = ("half",), ()


@pytest.mark.proves("Triton, interpreted")
@pytest.mark.parametrize("flush", ["0", "1"])
@pytest.mark.parametrize(
    ("check", "part"),
    [(check, HALF) for check in CHECKS]
    + [pytest.param(check, WHOLE, marks=pytest.mark.slow) for check in (*CHECKS, "check_kit")],
)
def test_bytes(check: str, part: tuple[str, ...], flush: str) -> None:
    program = Path(__file__).with_name("triton_checks.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", program, check, flush, *part],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["test_cases.py", "test_torchao_switch.py -k gives"])
def test_the_contract_in_the_interpreter(selection: str) -> None:
    """The tests of the emulated kernel; TorchAO's casts and the way back through the kernels."""
    run_tests_of_the_contract(selection, ATEN_MX_TEST_CPU="triton")


CORE = Path(native_functions_patch.__file__).parent / "torch/_native/ops/quantize_mx"
PACKAGE = Path(impl.__file__).parent


@pytest.mark.parametrize("name", sorted(path.name for path in CORE.glob("*.py")))
def test_the_patch_to_core_has_the_same_kernels(name: str) -> None:
    if name in ("__init__.py", "triton_impl.py"):  # what the dispatcher is told
        assert "import triton\n" not in (CORE / name).read_text()
    else:
        assert (CORE / name).read_bytes() == (PACKAGE / name).read_bytes()


def test_the_patch_to_core_has_the_same_table() -> None:
    core = load_core()
    assert list(core._FORMATS) == list(FORMATS)
    assert set(core._OVERRIDES) == {op.name().split("::")[1] for op in OVERLOADS}
    for name, fmt in FORMATS.items():
        assert core._FORMATS[name].payload_dtype is fmt.payload_dtype
        assert core._constants(name) == impl.constants(name)
        for mode in aten_mx.ScaleCalculationMode:
            assert core._addend(name, mode) == mode.rounding_addend(fmt)


def test_the_patch_to_core_takes_valid_calls_alone() -> None:
    """The rest is the composite's, whose errors are tested."""
    cond, _ = load_core()._OVERRIDES["quantize_mx"]
    x, e4m3 = torch.empty(4, 64), torch.float8_e4m3fn
    assert cond(x, -1, 32, e4m3, 3) is True
    assert cond(x, 2, 32, e4m3) is False
    assert cond(x, 0, 32, e4m3) is False
    assert cond(x, 1, 24, e4m3) is False
    assert cond(x, 1, 32, torch.int16) is False
    assert cond(x, 1, 32, e4m3, 4) is False
    assert cond(x.double(), 1, 32, e4m3) is False
    assert cond(x.to_sparse(), 1, 32, e4m3) is False
    assert cond(x[:0], 1, 32, e4m3) is False
    cond, _ = load_core()._OVERRIDES["dequantize_mx.format"]
    payload, scale = x.to(torch.uint8), torch.empty(4, 2).to(torch.float8_e8m0fnu)
    assert cond(payload, scale, 1, 32, "fp6_e2m3", x.dtype) is True
    assert cond(payload, scale.view(torch.uint8), 1, 32, "fp6_e2m3", x.dtype) is False
    assert cond(payload, scale[:3], 1, 32, "fp6_e2m3", x.dtype) is False
    assert cond(payload, scale, 1, 32, "fp8_e4m3", x.dtype) is False
    assert cond(payload, scale, 1, 32, "fp6_e2m3", torch.float64) is False
    assert cond(payload, scale, 1, 32, "fp6_e2m3", x.dtype, swizzle_type=1) is False


@pytest.fixture
def triton_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def is_representative(variant: codegen.Variant) -> bool:
    """One variant of each kind a target."""
    fmt, dtype = variant.elem_format, variant.dtype
    if variant.op == "dequantize_mx":
        return (fmt, dtype, variant.dim) == ("fp8_e5m2", "float16", -1)
    return variant.mode == 0 and (fmt, dtype, variant.dim) in (
        ("fp8_e4m3", "bfloat16", -1),
        ("fp8_e4m3", "bfloat16", 0),
        ("fp4_e2m1", "float32", -1),
    )


@pytest.mark.parametrize(
    ("target", "all_variants"),
    [(target, False) for target in codegen.TARGETS]
    + [pytest.param(target, True, marks=pytest.mark.slow) for target in codegen.TARGETS],
    ids=str,
)
@pytest.mark.usefixtures("triton_cache")
def test_machine_code_is_no_worse_than_committed(
    target: tuple[str, int | str], all_variants: bool
) -> None:
    committed = codegen.committed_rows()
    faults = []
    for variant in codegen.variants():
        if variant.target == target and (all_variants or is_representative(variant)):
            row = codegen.analyse(variant)
            found = codegen.regressions(row, committed[codegen.key(row)])
            faults += [(codegen.key(row), fault) for fault in found]
    assert not faults


@pytest.mark.slow
@pytest.mark.parametrize("mode", aten_mx.ScaleCalculationMode)
@pytest.mark.parametrize("target", codegen.TARGETS, ids=str)
@pytest.mark.usefixtures("triton_cache")
def test_every_mode_compiles(target: tuple[str, int | str], mode: int) -> None:
    for variant in codegen.variants():
        if variant.target == target and variant.mode == 0:
            launch, gpu = codegen.prepare(variant._replace(mode=int(mode)))
            assert compile_launch(launch, gpu).asm


@pytest.mark.parametrize(
    "change",
    [{"spills": 1}, {"load_bytes": 8}, {"store_bytes": 8}, {"instructions_per_element": 12.1}],
    ids=lambda change: next(iter(change)),
)
def test_a_regression_is_noticed(change: dict[str, Any]) -> None:
    row = {"spills": 0, "load_bytes": 16, "store_bytes": 16, "instructions_per_element": 10.0}
    assert codegen.regressions(row, row) == []
    assert len(codegen.regressions(row | change, row)) == 1


def test_committed_rows_are_all_variants_and_reach_the_limits() -> None:
    rows = codegen.committed_rows()
    names = {f"sm_{arch}" if backend == "cuda" else arch for backend, arch in codegen.TARGETS}
    assert len(rows) == len(list(codegen.variants()))
    assert {row["target"] for row in rows.values()} == names
    assert all(row["spills"] == 0 for row in rows.values())
    for mode in (0, 3):
        limits = {
            **{("fp8_e4m3", -1, target): 12 for target in ("sm_90", "sm_100")},
            **{("fp8_e5m2", -1, target): 12 for target in ("sm_90", "sm_100")},
            **{("fp8_e4m3", 0, target): 16 for target in ("sm_90", "sm_100")},
            **{("fp8_e5m2", 0, target): 16 for target in ("sm_90", "sm_100")},
            ("fp4_e2m1", -1, "sm_100"): 12,
            ("fp4_e2m1", 0, "sm_100"): 12,
            ("fp4_e2m1", -1, "sm_90"): 20,
            ("fp4_e2m1", 0, "sm_90"): 20,
        }
        for (fmt, dim, target), limit in limits.items():
            row = rows["quantize_mx", fmt, mode, "bfloat16", dim, target]
            assert row["instructions_per_element"] <= limit, row
            if dim == -1 and fmt.startswith("fp8"):
                assert (row["load_bytes"], row["store_bytes"]) == (16, 16), row
                assert row["headroom"] >= (1.5 if target == "sm_90" else 1), row


def test_the_documentation_has_the_committed_table() -> None:
    rows = json.loads(codegen.RESULTS.read_text())
    text = (BENCHMARKS.parent / "docs" / "codegen.md").read_text()
    assert codegen.digest(rows["rows"]) in text
    assert f"Triton {rows['triton']}" in text


def prepare(x: torch.Tensor, target: Any, **kwargs: Any) -> list[Any]:
    """Launches of both ops for a tensor on meta."""
    settings = {"dim": -1, "block_size": 32, "fmt": "fp8_e4m3", "swizzle": 0} | kwargs
    args = (settings["dim"], settings["block_size"], settings["fmt"])
    swizzle = settings["swizzle"]
    launch, output, scale = impl.prepare_quantize(x, *args, 3, swizzle, target)
    back, _ = impl.prepare_dequantize(output, scale, *args, x.dtype, swizzle, target)
    return [launch, back]


@pytest.mark.parametrize("target", [("cuda", 90), ("hip", "gfx950")], ids=str)
@pytest.mark.parametrize("kind", ["swizzled", "rows cut", "permuted", "block sizes"])
@pytest.mark.usefixtures("triton_cache")
def test_other_layouts_compile(target: tuple[str, int | str], kind: str) -> None:
    gpu = impl.target_of(*target)
    x = torch.empty(16, 24, 32, 256, device="meta", dtype=torch.bfloat16)
    launches = {
        "swizzled": lambda: prepare(x, gpu, swizzle=1),
        "rows cut": lambda: prepare(x[..., 128:], gpu, fmt="fp4_e2m1"),
        "permuted": lambda: prepare(x.permute(3, 1, 2, 0), gpu, dim=2),
        "block sizes": lambda: (
            prepare(x, gpu, block_size=128) + prepare(x.mT, gpu, block_size=16, fmt="int8")
        ),
    }[kind]()
    for launch in launches:
        code = codegen.disassemble(compile_launch(launch, gpu))
        # Triton 3.8 keeps two scalars of one kernel for gfx950 in vector registers.
        before_3_9 = tuple(map(int, version("triton").split(".")[:2])) < (3, 9)
        assert (code.local, code.spills if not before_3_9 else 0) == (0, 0)


@pytest.mark.parametrize("target", codegen.TARGETS, ids=str)
@pytest.mark.usefixtures("triton_cache")
def test_multiplications_keep_subnormals(target: tuple[str, int | str]) -> None:
    """What ``Target.flushes`` says of these targets."""
    gpu = impl.target_of(*target)
    assert not gpu.flushes
    x = torch.empty(64, 4096, device="meta", dtype=torch.float32)
    for launch in prepare(x, gpu):
        compiled = compile_launch(launch, gpu)
        if target[0] == "hip":
            mode = re.search(r"\.amdhsa_float_denorm_mode_32 (\d)", compiled.asm["amdgcn"])
            assert mode
            assert mode[1] == "3"
        else:
            floats = r"F(ADD|MUL|FMA|MNMX|SET|SEL)"
            names = codegen.disassemble(compiled).instructions
            assert any(re.match(floats, name) for name in names)
            assert not [name for name in names if re.match(floats, name) and "FTZ" in name]


def test_large_tensors_have_64_bit_offsets() -> None:
    gpu = impl.target_of("cuda", 90)
    x = torch.empty(1 << 20, 1 << 13, device="meta", dtype=torch.bfloat16)
    flat, flat_back = prepare(x, gpu)
    assert flat.arguments["columns"] == flat_back.arguments["columns"] == x.numel()
    assert flat.grid == (x.numel() // flat.arguments["COLUMNS"],)
    cut, _ = prepare(x[:, :4096], gpu)
    tiles = cut.arguments["row_tiles"] * cut.arguments["column_tiles"]
    assert cut.grid == (tiles,)
    assert cut.arguments["row_stride"] * cut.arguments["rows"] > 1 << 31


def test_support_follows_the_block_size_alone() -> None:
    """Cheap, and safe for fakes: nothing of a tensor is read."""
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(4, 768, device="cuda")
        for block_size in (1, 16, 24, 32, 48, 64, 96, 128, 256):
            expected = block_size in (16, 32, 64, 128)
            args = (1, block_size, "fp8_e4m3")
            assert impl.supports_quantize(x, *args, 0, swizzle_type=0) is expected
            assert impl.supports_dequantize(x, x, *args, x.dtype, swizzle_type=0) is expected


def test_a_call_that_is_not_for_them_is_refused() -> None:
    with pytest.raises(ValueError, match="takes block sizes 16, 32, 64, 128, got 24"):
        impl.quantize_mx(torch.ones(2, 48), 1, 24, "fp8_e4m3")
    with pytest.raises(RuntimeError, match="only under TRITON_INTERPRET=1"):
        impl.quantize_mx(torch.ones(2, 64), 1, 32, "fp8_e4m3")


FIRST_USE = """
import json, sys, torch, aten_mx

assert "triton" not in sys.modules
assert not [row for row in aten_mx.kernels() if row.dispatch_key in ("CUDA", "XPU")]
for module in (torch.cuda, torch.xpu):  # what setting a device up does
    for call, _ in module._queued_calls:
        if getattr(call, "func", call).__module__.startswith("aten_mx"):
            call()
rows = [row for row in aten_mx.kernels() if row.dispatch_key in ("CUDA", "XPU")]
print(json.dumps([(row.op, row.dispatch_key, row.kernel) for row in rows]))
"""


def test_registered_at_the_first_use_of_a_device() -> None:
    assert sorted(json.loads(run_python(FIRST_USE))) == sorted(
        [f"{op}{overload}", key, f"aten_mx.backends.triton.impl.{op}"]
        for op in ("quantize_mx", "dequantize_mx")
        for overload in ("", ".format")
        for key in ("CUDA", "XPU")
    )


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[Any] = []
    for module in impl.DEVICES.values():
        monkeypatch.setattr(module, "_lazy_call", queued.append)
    monkeypatch.setenv("ATEN_MX_TRITON", "off")
    impl.register_at_first_use()
    assert queued == []
    monkeypatch.delenv("ATEN_MX_TRITON")
    impl.register_at_first_use()
    assert len(queued) == 2


@pytest.mark.parametrize(("module", "text"), [(None, "cannot be imported"), ("3.5.1", "older")])
def test_without_triton_the_emulated_kernel_answers(
    module: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = None if module is None else SimpleNamespace(__version__=module)
    monkeypatch.setitem(sys.modules, "triton", fake)
    assert text in str(impl.triton_fault())
    assert impl.register("PrivateUse1") is False
    assert "PrivateUse1" not in {row.dispatch_key for row in aten_mx.kernels()}


def test_anothers_kernel_stays() -> None:
    handles = [aten_mx.register_kernel("quantize_mx", "PrivateUse1", lambda *args, **kwargs: None)]
    try:
        assert impl.register("PrivateUse1") is False
        kernels = {row.op: row.kernel for row in aten_mx.kernels() if row.compiled == "one node"}
        assert "lambda" in kernels["quantize_mx.format"]
        assert kernels["dequantize_mx.format"] == "aten_mx.backends.triton.impl.dequantize_mx"
    finally:
        handles += [h for h in registry._registered if h.dispatch_key == "PrivateUse1"]
        for handle in handles:
            handle.unregister()


def test_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_MX_TRITON", "on")
    with pytest.raises(ValueError, match="ATEN_MX_TRITON must be one of auto, off, got on"):
        impl.register_at_first_use()


ONE_NODE = """
import torch, aten_mx
from aten_mx.backends.triton import impl

impl._target(torch.device("cpu"))  # the interpreter
for op, fn, supports in impl.KERNELS:
    aten_mx.register_kernel(op, "CPU", fn, supports=supports)
op = torch.ops.aten_mx.quantize_mx.format
calls = []
run = impl.prepare_quantize
impl.prepare_quantize = lambda *args: calls.append(args) or run(*args)
def quantize(x):
    return op(x + 1, -1, 32, "fp6_e2m3", 3)
x = torch.randn(4, 64)
compiled = torch.compile(quantize, fullgraph=True)(x)
assert len(calls) == 1, calls
for got, want in zip(compiled, quantize(x)):
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
from torch.fx.experimental.proxy_tensor import make_fx
table = aten_mx.decomposition_table()
graph = make_fx(quantize, decomposition_table=table)(x).graph
assert not [node for node in graph.nodes if "quantize_mx" in str(node.target)]
"""


@pytest.mark.slow  # what it shares with every kernel is in test_kernel_under_compile.py
def test_one_node_under_compile_and_inlined_by_the_table() -> None:
    run_python(ONE_NODE, TRITON_INTERPRET="1", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
