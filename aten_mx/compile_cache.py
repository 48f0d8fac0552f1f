"""Keeps PyTorch's compile caches from serving a graph that another source of this package made.

Inductor and AOTAutograd key their caches on disk by the graph before decomposition, where a call
is one node whatever its composite looks like. Without a tag, an upgraded package would go on
running the old version's code (seen on PyTorch 2.13).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch.compiler.config

_TRACED = (
    "formats.py",
    "scaling.py",
    "layout.py",
    "meta.py",
    "schema.py",
    "dispatch.py",
    "functional.py",
    "backends/composite.py",
)


def source_tag() -> str:
    """A short digest of the sources whose code ends up in compiled graphs."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for name in _TRACED:
        digest.update((package / name).read_bytes())
    return f"aten_mx:{digest.hexdigest()[:16]}"


def tag_compile_caches() -> None:
    """Add :func:`source_tag` to ``torch.compiler.config.cache_key_tag``; a user's own tag stays."""
    config = torch.compiler.config
    tags = [tag for tag in config.cache_key_tag.split(";") if tag]
    if source_tag() not in tags:
        config.cache_key_tag = ";".join([*tags, source_tag()])


tag_compile_caches()
