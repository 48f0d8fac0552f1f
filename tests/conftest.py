"""Fixtures of more than one test file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Whatever is built on this machine: the tests are about the emulated kernel, but for those that ask
# for the native one. Processes that tests start inherit it. ATEN_MX_TEST_CPU=require runs them all
# on the native kernel, behind its validation.
os.environ["ATEN_MX_CPU"] = os.environ.get("ATEN_MX_TEST_CPU", "off")


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that has the kernel; a build that fails is a failure, no skip."""
    from aten_mx.backends import cpu  # after ATEN_MX_CPU is set, which its import reads

    os.environ.setdefault("ATEN_MX_CACHE_DIR", str(tmp_path_factory.getbasetemp().parent / "cpu"))
    cpu.build()
    return {"ATEN_MX_CPU": "require"}


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Each test compiles anew: a graph from the disk would be no test of these sources."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
