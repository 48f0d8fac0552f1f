"""Fixtures of more than one test file."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import under_test

# Whatever is built on this machine: the tests are about the emulated kernel, but for those that ask
# for another one. Processes that tests start inherit it.
os.environ["ATEN_MX_CPU"] = "require" if under_test.CPU == "require" else "off"

# What a test compiles is little, and the workers of the run fill the cores already: Inductor starts
# no processes of its own.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


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


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of processes that load ``examples/cpp_backend``: all workers of a run share one
    build, made by the first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    # One thread: the tensors are small, and the tests' processes fill the cores.
    return {"MXDEV_BUILD": str(folder / "cpp_backend"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with TorchAO and ``rfc/torchao.patch``, without TorchAO's CUDA libraries."""
    # Imports the package: not before its environment is set.
    from support import TORCHAO_PATCH, apply_patch

    folder = tmp_path_factory.mktemp("patched")
    spec = importlib.util.find_spec("torchao")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = spec.submodule_search_locations[0]
    shutil.copytree(package, folder / "torchao", ignore=shutil.ignore_patterns("*.so"))
    apply_patch(TORCHAO_PATCH, folder)
    return folder


@pytest.fixture
def switched_off() -> Iterator[None]:
    """Nothing that one test switches in TorchAO is left on in the next."""
    from aten_mx import compiler
    from aten_mx.integrations import torchao as switch

    assert not compiler.switches
    yield
    switch.disable()


def pytest_configure() -> None:
    if under_test.BACKEND:
        from aten_mx.plugins import import_backend

        import_backend(under_test.BACKEND)
    if under_test.CPU == "triton":
        interpret_triton()


def interpret_triton() -> None:
    """Make the Triton kernels the CPU's."""
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np

    import aten_mx
    from aten_mx.backends.triton import impl

    np.seterr(over="ignore", invalid="ignore")  # the interpreter's: Inf and NaN are meant
    for op, fn, supports in impl.KERNELS:
        aten_mx.register_kernel(op, "CPU", fn, supports=supports)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import parity

    parity.mark_items(items)
    if under_test.DEVICE == "cpu":
        return
    for item in items:
        if item.get_closest_marker("contract") is None:
            item.add_marker(pytest.mark.skip(reason="concerns the CPU alone"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    import parity

    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if getattr(report, "when", "") == "call"
    ]
    for line in parity.table(reports):
        terminalreporter.write_line(line)
