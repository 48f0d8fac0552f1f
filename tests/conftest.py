"""Fixtures of more than one test file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Whatever is built on this machine: most tests are about the emulated kernel, those of the native
# one ask for it. Processes that tests start inherit it.
os.environ["ATEN_MX_CPU"] = "off"


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Each test compiles anew: a graph from the disk would be no test of these sources."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
