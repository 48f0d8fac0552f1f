"""The patch's Triton part, loaded as PyTorch core would load it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

# No part of the installed package; processes that tests start know only this folder.
sys.path.insert(0, str(Path(__file__).parents[1]))

from native_functions_patch import manifest


def load_core() -> Any:
    """``triton_impl`` of the patch to PyTorch core, as a module of ``torch._native``."""
    name = "torch._native.ops.quantize_mx"
    directory = manifest.PATCH_ROOT / name.replace(".", "/")
    spec = importlib.util.spec_from_file_location(
        name,
        directory / "__init__.py",
        submodule_search_locations=[str(directory), str(manifest.TRITON), str(manifest.PACKAGE)],
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return sys.modules[f"{name}.triton_impl"]
