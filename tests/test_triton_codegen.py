"""What the Triton kernels compile to, without a GPU: machine code, counted, for every target."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import aten_mx
from aten_mx.backends.triton import impl
from aten_mx.backends.triton.ahead import compile_launch
from aten_mx.backends.triton.targets import constants, convert_ptx
from aten_mx.formats import FORMATS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import codegen  # noqa: E402

# A compilation takes seconds: by default the targets that differ most, with make test-slow all.
DIFFERENT = [("cuda", 90), ("cuda", 100), ("hip", "gfx950")]
EACH_TARGET = pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=() if target in DIFFERENT else pytest.mark.slow)
        for target in codegen.TARGETS
    ],
    ids=str,
)


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
    [(target, False) for target in DIFFERENT]
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
    assert len(rows) == len(list(codegen.variants())), "run: python benchmarks/codegen.py --all"
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


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        pytest.param(target, kind, marks=() if target == by_default else pytest.mark.slow)
        for kind, by_default in {
            "swizzled": ("cuda", 90),
            "rows cut": ("hip", "gfx950"),
            "permuted": ("cuda", 90),
            "block sizes": ("hip", "gfx950"),
        }.items()
        for target in (("cuda", 90), ("hip", "gfx950"))
    ],
    ids=str,
)
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


@EACH_TARGET
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


def test_only_an_encoding_that_ptx_names_is_converted_by_it() -> None:
    """Another maximum, NaN or width is another encoding, and takes the generic path."""
    found = {name: convert_ptx(constants(FORMATS[name]), 100) for name in FORMATS}
    assert [name for name, ptx in found.items() if not ptx] == ["int8"]
    for name, ptx in found.items():
        assert not ptx or f".{name.partition('_')[2]}x2.f32" in ptx
        assert bool(convert_ptx(constants(FORMATS[name]), 89)) is name.startswith("fp8")
        assert not convert_ptx(constants(FORMATS[name]), 80)
    for change in (
        {"max_code": 0x77},
        {"nan_code": 0x78},
        {"exponent_bits": 3, "mantissa_bits": 4, "nan_code": 0},
        {"exponent_bits": 1, "mantissa_bits": 6, "nan_code": 0},
        {"bits": 7, "exponent_bits": 3, "max_code": 0x3F, "nan_code": 0},
    ):
        fmt = replace(FORMATS["fp8_e4m3"], name="other", dtype=None, **change)
        assert convert_ptx(constants(fmt), 100) == "", change


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
