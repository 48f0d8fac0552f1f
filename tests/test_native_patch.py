"""The patch to PyTorch core: it applies, and its yaml says what ``torch.library`` is told.

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

from native_functions_patch import check, codegen, compiling, overlay, tree

SITE_PACKAGES = Path(torch.__file__).parent.parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the diffs")
PATCHES = sorted(tree.PATCHES.rglob("*.patch"))
# As much of the two files that no wheel carries as their diffs must find.
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
    "aten/src/ATen/functorch/BatchRulesDecompositions.cpp": """
  OP_DECOMPOSE(positive);
  OP_DECOMPOSE(ravel);
""",
}


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tree from the installed wheel with the patch applied."""
    root = tmp_path_factory.mktemp("core")
    tree.lay_out(SITE_PACKAGES, root)
    tree.apply_patches(root)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_one_diff_per_file(patch: Path) -> None:
    assert len(tree.changed_paths(patch)) == 1
    assert not re.search(r"^\+.*[ \t]$", patch.read_text(), re.MULTILINE)  # no trailing blanks


@needs_git
def test_yaml_is_the_packages_schema(patched: Path) -> None:
    assert codegen.check_schemas(patched).startswith("4 schemas")


@needs_git
def test_another_schema_is_noticed(patched: Path, tmp_path: Path) -> None:
    shutil.copytree(patched / codegen.NATIVE, tmp_path / codegen.NATIVE)
    yaml = tmp_path / codegen.NATIVE / "native_functions.yaml"
    yaml.write_text(yaml.read_text().replace("-> (Tensor output, Tensor scale)", "-> Tensor[]"))
    with pytest.raises(codegen.CodegenError, match=r"aten_mx\.schema"):
        codegen.check_schemas(tmp_path)


@needs_git
def test_overlay_has_the_changed_files_and_the_new_ones(patched: Path) -> None:
    made = overlay.make_overlay(SITE_PACKAGES, patched)
    for path in ("torch/overrides.py", "torch/_native/ops/quantize_mx/triton_impl.py"):
        assert (made / path).resolve() == (patched / path).resolve()
    untouched = "torch/__init__.py"
    assert (made / untouched).resolve() == (SITE_PACKAGES / untouched).resolve()


@needs_git
def test_python_files_compile(patched: Path) -> None:
    for patch in tree.PATCHES.glob("*.py.patch"):
        for path in tree.changed_paths(patch):
            ast.parse((patched / path).read_text())
    for path in tree.new_files():
        assert (patched / path).is_file()


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
    tree.lay_out(SITE_PACKAGES, tmp_path)
    for name, text in CHECKOUT_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check.main(["--source", str(tmp_path)]) == 0
    build_list = (tmp_path / "build_variables.bzl").read_text()
    for path in tree.new_files():
        if path.endswith(".cpp"):
            assert build_list.count(f'"{path}",') == 1, path
    assert check.main(["--source", str(tmp_path)]) == 1  # not twice
    assert "FAIL  apply" in capsys.readouterr().out


def test_source_must_be_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--source", str(tmp_path)]) == 2
    assert "no PyTorch checkout" in capsys.readouterr().err


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
        monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert check.main([]) == 2
    expected = {
        "git": "git is needed",
        "yaml": "pip install pyyaml$",
        "expecttest": "pip install expecttest$",
        "compiler": "no C\\+\\+ compiler",
    }
    assert re.search(f"^cannot run: .*{expected[tool]}", capsys.readouterr().err)
