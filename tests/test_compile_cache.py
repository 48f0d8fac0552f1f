"""Compile caches on disk never serve a graph made by another source of the package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support import run_python

import aten_mx
from aten_mx.compiler import cache_tag, tag_compile_caches

PROGRAM = """
import torch, aten_mx
x = torch.tensor([[1.0, 3.0] * 16])
output, scale = torch.compile(aten_mx.quantize_mx, fullgraph=True)(x)
print(output.view(torch.uint8)[0, 0].item(), scale.view(torch.uint8).item())
"""


def run(package_parent: Path, cache: Path) -> str:
    return run_python(
        PROGRAM,
        cwd=package_parent,  # found before the installed package
        PYTHONPATH=str(package_parent),
        TORCHINDUCTOR_CACHE_DIR=str(cache),
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="0",
    )


@pytest.mark.slow  # two processes that compile
def test_a_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    """Two sources of the package, one cache directory: each runs its own graph.

    The first call of each process is a compiled one: nothing is built or looked up on a first eager
    call, which would be a graph break.
    """
    shutil.copytree(Path(aten_mx.__file__).parent, tmp_path / "aten_mx")
    cache = tmp_path / "cache"
    before = run(tmp_path, cache)
    kernel = tmp_path / "aten_mx" / "emulated.py"
    source = kernel.read_text()
    changed = source.replace("clamp(0, 2 * E8M0_BIAS)", "add(1).clamp(0, 2 * E8M0_BIAS)")
    assert changed != source
    kernel.write_text(changed)
    after = run(tmp_path, cache)
    assert before.split() == ["112", "120"]
    assert after.split() == ["104", "121"]


def test_the_tag_keeps_the_users_own() -> None:
    config = torch.compiler.config
    with config.patch(cache_key_tag="mine"):
        tag_compile_caches()
        tag_compile_caches()
        assert config.cache_key_tag == f"mine;{cache_tag()}"
    assert cache_tag() in config.cache_key_tag
