"""A hook runs whenever its module is executed, whatever looked at it or failed before."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import run_python

from aten_mx.after_import import after_import

NAME = "hooked_module"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module's file, whose import nothing hooks yet."""
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield file
    sys.modules.pop(NAME, None)


@pytest.fixture
def calls(module: Path) -> list[int]:
    """Of a hook: the module's value at each."""
    seen: list[int] = []
    after_import(NAME, lambda module: seen.append(module.value), otherwise="nothing")
    return seen


class Finder(importlib.abc.MetaPathFinder):
    """Another package's, which finds the module as ``look`` says."""

    def __init__(self, look: Callable[..., Any]) -> None:
        self.look = look
        self.busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if fullname != NAME or self.busy:
            return None
        self.busy = True
        try:
            return self.look(fullname)
        finally:
            self.busy = False


def ask_everyone(name: str) -> Any:
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec), None)


def lazily(name: str) -> Any:
    spec = importlib.machinery.PathFinder.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    return spec


def test_after_looks(calls: list[int]) -> None:
    for _ in range(3):
        assert importlib.util.find_spec(NAME) is not None
    assert not calls
    hooked = importlib.import_module(NAME)
    assert calls == [1]
    assert type(hooked.__loader__) is importlib.machinery.SourceFileLoader
    assert hooked.__spec__ is not None
    assert hooked.__spec__.loader is hooked.__loader__
    assert importlib.util.find_spec(NAME) is not None
    assert calls == [1]


def test_the_loader_of_a_look_is_whole(calls: list[int]) -> None:
    """``inspect``, ``pkgutil`` and ``runpy`` ask it for more than to execute."""
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    loader: Any = spec.loader
    assert loader.get_source(NAME) == "value = 1\n"
    assert not loader.is_package(NAME)
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    assert inspect.getsource(made) == "value = 1\n"
    assert calls == [1]


def test_after_failed_imports(module: Path, calls: list[int]) -> None:
    module.write_text("raise OSError('once')\n")
    for _ in range(2):
        with pytest.raises(OSError, match="once"):
            importlib.import_module(NAME)
    module.unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert not calls
    module.write_text("value = 2\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == [2]


def test_at_each_execution(module: Path, calls: list[int]) -> None:
    hooked = importlib.import_module(NAME)
    module.write_text("value = 22\n")
    importlib.reload(hooked)
    del sys.modules[NAME]
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert calls == [1, 22, 22]


def test_imported_before(module: Path) -> None:
    hooked = importlib.import_module(NAME)
    calls: list[int] = []
    after_import(NAME, lambda module: calls.append(module.value), otherwise="nothing")
    assert calls == [1]
    importlib.reload(hooked)
    assert calls == [1, 1]


@pytest.mark.parametrize("look", [importlib.util.find_spec, ask_everyone])
@pytest.mark.parametrize("first", [True, False])
def test_finders_that_ask_each_other(calls: list[int], look: Any, first: bool) -> None:
    sys.meta_path.insert(0 if first else 1, Finder(look))
    sys.meta_path.insert(0 if first else 2, Finder(look))
    assert importlib.util.find_spec(NAME) is not None
    importlib.import_module(NAME)
    assert calls == [1]


def test_two_hooks(calls: list[int]) -> None:
    more: list[int] = []
    after_import(NAME, lambda module: more.append(module.value), otherwise="nothing")
    importlib.util.find_spec(NAME)
    importlib.import_module(NAME)
    assert calls == more == [1]


@pytest.mark.parametrize("position", [0, 1])
def test_a_lazy_loader(calls: list[int], position: int) -> None:
    """Whether it is around the hook or the hook around it: nothing runs before the module does."""
    lazy = lazily if position else _lazily_around_the_rest
    sys.meta_path.insert(position, Finder(lazy))
    hooked = importlib.import_module(NAME)
    assert not calls
    assert hooked.value == 1
    assert calls == [1]


def _lazily_around_the_rest(name: str) -> Any:
    spec = ask_everyone(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    return spec


def test_threads(module: Path, calls: list[int]) -> None:
    module.write_text("import time\ntime.sleep(0.05)\nvalue = 1\n")
    start = threading.Barrier(8)

    def look_and_import() -> None:
        start.wait()
        importlib.util.find_spec(NAME)
        importlib.import_module(NAME)

    threads = [threading.Thread(target=look_and_import) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_a_hook_that_fails(module: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The import is not ours to fail."""
    after_import(NAME, lambda module: module.gone, otherwise="the consequence")
    assert importlib.import_module(NAME).value == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert NAME in message
    assert "has no attribute 'gone'" in message
    assert message.endswith(": the consequence")


LOOKS = """
import importlib.util, sys
import torch
import aten_mx
names = ("torch.distributed.tensor", "torch._inductor.decomposition", "torch._dynamo.callback")
for name in names:
    importlib.util.find_spec(name)
import torch.distributed.tensor
assert "aten_mx.integrations.dtensor" in sys.modules
from torch._inductor.decomposition import decompositions
assert not [op for op in decompositions if str(op).startswith("aten_mx.")]
import torch._dynamo.callback
assert "aten_mx" in torch._dynamo.callback.callback_handler.run_start_callbacks.__module__
print("hooked")
"""


def test_pytorchs_modules_after_looks() -> None:
    assert run_python(LOOKS) == "hooked\n"
