"""The patch to PyTorch core: it applies, and its yaml has the schemas of ``torch.library``.

What takes minutes (the generators, the compiler, the op in its place) is
``python -m native_functions_patch.check``.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import aten_mx
from aten_mx import schema
from aten_mx.backends import build, recipe
from native_functions_patch import check, codegen, manifest, overlay, tree

SITE_PACKAGES = Path(torch.__file__).parent.parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the diffs")
PATCHES = manifest.diffs(checkout=True)
# As much of the files that no wheel carries as their diffs must find.
CHECKOUT_FILES = {
    "build_variables.bzl": """
aten_native_source_codegen_list = [
    "aten/src/ATen/native/cpu/PowKernel.cpp",
    "aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp",
]
aten_native_source_non_codegen_list = [
    "aten/src/ATen/native/quantized/QTensor.cpp",
    "aten/src/ATen/native/quantized/TensorCompare.cpp",
]
""",
    "test/test_quantization.py": """
import logging

from quantization.core.test_backend_config import TestBackendConfig  # noqa: F401
""",
    "aten/src/ATen/functorch/BatchRulesDecompositions.cpp": """
  OP_DECOMPOSE(positive);
  OP_DECOMPOSE(ravel);
""",
}


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tree from the installed wheel with the patch applied. No test changes it."""
    root = tmp_path_factory.mktemp("core")
    tree.lay_out(SITE_PACKAGES, root)
    tree.apply_patches(root)
    yield root
    shutil.rmtree(root)


def _lay_out_checkout(root: Path) -> None:
    tree.lay_out(SITE_PACKAGES, root)
    for name, text in CHECKOUT_FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_each_diff_is_of_one_file() -> None:
    for patch in PATCHES:
        assert len(tree.changed_paths(patch)) == 1, patch
        assert not re.search(r"^\+.*[ \t]$", patch.read_text(), re.MULTILINE), (
            patch
        )  # trailing blank


def test_each_new_file_stands_once_and_core_needs_no_other_import() -> None:
    """What the package has is taken from there, and its Triton imports work in core unchanged."""
    files = manifest.new_files()
    assert len({file.destination for file in files}) == len(files)
    owned = [file for file in files if manifest.PATCH_ROOT in file.source.parents]
    contents = [file.source.read_bytes() for file in files]
    assert len(set(contents)) == len(contents)
    assert {file.source.suffix for file in owned} == {".py"}
    in_core = {Path(file.destination).stem for file in files if "quantize_mx/" in file.destination}
    taken = [file.source for file in files if file.source.parent == manifest.TRITON]
    assert len(taken) == 4
    for source in taken:
        assert "aten_mx" not in source.read_text(), source
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, source
                assert node.module in in_core, source


def test_the_package_imports_nothing_of_the_patch() -> None:
    for path in Path(aten_mx.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("native_functions_patch")], path


def test_a_review_has_nothing_of_those_after_it() -> None:
    names = [{file.destination for file in manifest.new_files(n)} for n in (1, 2, 3)]
    assert names[0] < names[1] < names[2]
    assert not [name for name in names[0] if "/native/cpu/" in name or "_native/ops" in name]
    assert not [name for name in names[1] if "_native/ops" in name]
    yaml = manifest.PATCHES / "1-operators" / "01-native_functions.yaml.patch"
    assert not re.search(r"^\+.*(CPU:|tags: core)", yaml.read_text(), re.MULTILINE)
    assert not [patch for patch in PATCHES if "shim" in patch.name or "fallback" in patch.name]


def test_a_review_includes_no_header_of_those_after_it() -> None:
    """Each ``QuantizeMX`` header that a source includes comes with that review or before it."""
    review_of = {file.destination: file.review for file in manifest.new_files()}
    included = 0
    for file in manifest.new_files():
        if file.source.suffix in (".h", ".cpp"):
            text = file.source.read_text()
            for header in re.findall(r"#include <(ATen/native/\w+/\w*QuantizeMX\w*\.h)>", text):
                assert review_of[f"aten/src/{header}"] <= file.review, (
                    f"{file.destination}: {header}"
                )
                included += 1
    assert included > 10


@needs_git
def test_a_review_applies_without_those_after_it(patched: Path, tmp_path: Path) -> None:
    """Reviews 1 and 2 are complete without the third: also in the build list of a checkout."""
    for last in (1, 2):
        other = tmp_path / str(last)
        _lay_out_checkout(other)
        for path in tree.apply_patches(other, last, checkout=True):
            assert path in CHECKOUT_FILES or (patched / path).is_file(), path
        yaml = (other / codegen.NATIVE / "native_functions.yaml").read_text()
        assert len(re.findall(r"^- func: (?:de)?quantize_mx[.(]", yaml, re.MULTILINE)) == 4
        assert ("CPU: quantize_mx_cpu" in yaml) is (last == 2)
        assert "quantize_mx" not in (other / "torch/_native/ops/__init__.py").read_text()
        listed = re.findall(
            r'"(\S*/\w*QuantizeMX\w*\.cpp)"', (other / "build_variables.bzl").read_text()
        )
        sources = [f.destination for f in manifest.new_files(last) if f.source.suffix == ".cpp"]
        assert sorted(listed) == sources


@needs_git
def test_the_change_is_written_as_a_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Applied to the files before it, the three written diffs give the written files."""
    out, core = tmp_path / "out", tmp_path / "core"
    assert check.main(["--out", str(out)]) == 0, capsys.readouterr().out
    _lay_out_checkout(core)
    for review in manifest.REVIEWS:
        tree._git_apply(core, [out / f"{review.name}.patch"])
    written = [path for path in out.rglob("*") if path.is_file() and path.parent != out]
    assert len(written) > len(manifest.new_files())
    for path in written:
        assert path.read_bytes() == (core / path.relative_to(out)).read_bytes(), path
    for file in manifest.new_files():
        assert (out / file.destination).read_bytes() == file.source.read_bytes()
    assert "2-cpu.patch" in (out / "README.md").read_text()
    before = sorted(out.rglob("*"))
    assert check.main(["--out", str(out)]) == 2
    assert capsys.readouterr().err == f"cannot run: {out} isn't empty\n"
    assert check.main(["--out", str(out / "README.md")]) == 2
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize(
    ("cxx", "arguments"),
    [
        (None, []),
        ("", []),
        ("  ", []),
        ("g++ -m64 ", ["-m64"]),
        ("env g++", ["g++"]),
        ("'{folder}/a compiler' -m64", ["-m64"]),
    ],
)
def test_cxx_is_a_command_line(
    cxx: str | None, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a compiler"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    if cxx is not None:
        monkeypatch.setenv("CXX", cxx.format(folder=tmp_path))
    command = build.compiler()
    assert Path(command[0]).name == (
        "env" if cxx == "env g++" else "a compiler" if cxx and "folder" in cxx else "g++"
    )
    assert command[1:] == arguments


@pytest.mark.parametrize(
    ("cxx", "named"),
    [("nosuch-g++ -m64", "nosuch-g++ is not on the PATH"), ('"g++', "CXX is no command line")],
)
def test_cxx_that_is_no_compiler_is_named(
    cxx: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(build.BuildError, match=re.escape(named)) as caught:
        build.compiler_command()
    assert repr(cxx) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert check.main([]) == 2  # the check of the patch takes the same compiler
    assert capsys.readouterr().err == f"cannot run: {caught.value}\n"


def test_flags_of_the_user_come_before_those_that_the_bytes_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        Path(command[command.index("-o") + 1]).touch()

    monkeypatch.setenv("CXXFLAGS", "-g '-DNAME=a b' -ffast-math")
    monkeypatch.setenv("LDFLAGS", "-Wl,--as-needed")
    monkeypatch.setattr(build, "_run", run)
    build.compile_library(["c++"], tmp_path / "library.so", lambda line: None)
    for command in commands:
        assert command[:4] == ["c++", "-g", "-DNAME=a b", "-ffast-math"]
        assert command.index("-ffast-math") < command.index("-fno-fast-math")
        assert ("-Wl,--as-needed" in command) == ("-shared" in command)
    assert sum("-shared" in command for command in commands) == 1


@pytest.mark.parametrize("variable", ["CXXFLAGS", "LDFLAGS"])
def test_flags_that_cannot_be_read_are_named(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-g '")
    with pytest.raises(
        build.BuildError, match=rf"^{variable} is no command line .*, got \"-g '\"$"
    ):
        build.words(variable)


@pytest.mark.parametrize(
    ("system", "machine", "named"),
    [
        ("Darwin", "arm64", "Linux on x86-64 and AArch64, not for Darwin arm64"),
        ("Windows", "AMD64", "not for Windows AMD64; the emulated kernel answers there"),
    ],
)
def test_another_system_is_named(
    system: str, machine: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.platform, "system", lambda: system)
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    with pytest.raises(build.BuildError, match=re.escape(named)):
        build.compiler_command()


def test_both_builds_take_each_source_from_one_description() -> None:
    ours = {unit.source for unit in recipe.units(build._sources())}
    core = {f.source for f in manifest.new_files() if f.source.suffix == ".cpp"}
    assert {path.name for path in core - ours} == set(build._ONLY_IN_CORE)
    for unit in recipe.units(core):
        assert set(recipe.WARNINGS) <= set(unit.flags)
    assert "-ffp-contract=off" in recipe.FLAGS
    kernels = [u.name for u in recipe.units(core) if u.source.parent.name == "cpu"]
    assert len(kernels) == (3 if recipe.IS_X86 else 1)


@needs_git
def test_yaml_is_the_packages_schema(patched: Path) -> None:
    assert codegen.check_schemas(patched).startswith("4 schemas")


@needs_git
def test_another_schema_is_noticed(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another default, another result name, and one overload too few."""
    schemas = tuple(schema.SCHEMAS)
    for old, new in (("mode=0", "mode=1"), ("Tensor scale)", "Tensor scales)"), ("", "")):
        other = [text.replace(old, new) for text in schemas] if old else schemas[1:]
        monkeypatch.setattr(schema, "SCHEMAS", other)
        with pytest.raises(codegen.CodegenError, match=r"aten_mx\.schema"):
            codegen.check_schemas(patched)


@needs_git
def test_overlay_has_the_changed_files_and_the_new_ones(patched: Path) -> None:
    changed = ["torch/overrides.py", *(file.destination for file in manifest.new_files())]
    made = overlay.make_overlay(SITE_PACKAGES, patched, changed)
    for path in ("torch/overrides.py", "torch/_native/ops/quantize_mx/triton_impl.py"):
        assert (made / path).resolve() == (patched / path).resolve()
    untouched = "torch/__init__.py"
    assert (made / untouched).resolve() == (SITE_PACKAGES / untouched).resolve()


@needs_git
def test_python_files_compile(patched: Path) -> None:
    for patch in manifest.diffs():
        for path in tree.changed_paths(patch):
            if path.endswith(".py"):
                compile((patched / path).read_text(), path, "exec")
    for file in manifest.new_files():
        assert (patched / file.destination).is_file()


@needs_git
def test_all_or_nothing(tmp_path: Path) -> None:
    """Where one diff doesn't apply no file is touched."""
    tree.lay_out(SITE_PACKAGES, tmp_path)
    overrides = tmp_path / "torch/overrides.py"
    overrides.write_text("")
    before = (tmp_path / codegen.NATIVE / "native_functions.yaml").read_bytes()
    with pytest.raises(tree.PatchError, match="overrides"):
        tree.apply_patches(tmp_path)
    assert (tmp_path / codegen.NATIVE / "native_functions.yaml").read_bytes() == before
    assert not (tmp_path / "test").exists()


@needs_git
def test_source_applies_to_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _lay_out_checkout(tmp_path)
    assert check.main(["--source", str(tmp_path)]) == 0
    build_list = (tmp_path / "build_variables.bzl").read_text()
    for file in manifest.new_files():
        if file.source.suffix == ".cpp":
            assert build_list.count(f'"{file.destination}",') == 1, file
    assert "test_quantize_mx" in (tmp_path / "test/test_quantization.py").read_text()
    assert check.main(["--source", str(tmp_path)]) == 1  # not twice
    assert "FAIL  apply" in capsys.readouterr().out


def test_source_must_be_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--source", str(tmp_path)]) == 2
    assert "is not a PyTorch checkout" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["git", "yaml", "expecttest", "compiler"])
def test_what_is_missing_is_named(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    which, find_spec = shutil.which, importlib.util.find_spec
    if tool == "git":
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "git" else which(name))
    elif tool in ("yaml", "expecttest"):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == tool else find_spec(name)
        )
    else:
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "g++" else which(name))
        monkeypatch.delenv("CXX", raising=False)
    assert check.main([]) == 2
    expected = {
        "git": "git is needed",
        "yaml": "pip install pyyaml$",
        "expecttest": "pip install expecttest$",
        "compiler": "no C\\+\\+ compiler",
    }
    assert re.search(f"^cannot run: .*{expected[tool]}", capsys.readouterr().err)
