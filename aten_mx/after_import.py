"""Runs code when the user imports a module, so that importing this package doesn't pay for it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple


def attempt(action: Callable[[], None], changed: str, *, otherwise: str) -> None:
    """Run an action that may fail with a later release of a library.

    An exception becomes a warning in the log.

    Args:
        action: what to run.
        changed: the part of the library that it relies on.
        otherwise: what the user loses if it fails.
    """
    try:
        action()
    except Exception as error:
        # Not warnings.warn, which raises under -W error: the import of that library must not fail.
        logging.getLogger("aten_mx").warning(
            "%s is not as this version of aten_mx knows it (%s: %s): %s",
            changed,
            type(error).__name__,
            error,
            otherwise,
        )


class _Hook(NamedTuple):
    callback: Callable[[ModuleType], None]
    otherwise: str

    def run(self, module: ModuleType) -> None:
        attempt(lambda: self.callback(module), module.__name__, otherwise=self.otherwise)


class _Loader(importlib.abc.Loader):
    """Another loader, and the hook after each execution of the module."""

    def __init__(self, loader: Any, hook: _Hook) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source and get_data

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module looks as it does without this package.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook.run(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``name`` as the other finders do, with the hook in the loader.

    It stays in ``sys.meta_path``: ``importlib.util.find_spec`` finds a module without executing it,
    an execution can fail, and a module can be executed again.
    """

    def __init__(self, name: str, hook: _Hook) -> None:
        self._name = name
        self._hook = hook
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Another finder may ask all finders, this one too.
        if fullname != self._name or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = self._ask_the_others(fullname, path, target)
        finally:
            self._looking.now = False
        loader = spec and spec.loader
        if spec is None or not hasattr(loader, "exec_module"):
            return spec
        if isinstance(loader, importlib.util.LazyLoader):  # executes later, by the loader inside
            loader.loader = _Loader(loader.loader, self._hook)  # type: ignore[attr-defined]
        else:
            spec.loader = _Loader(loader, self._hook)
        return spec

    def _ask_the_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def after_import(name: str, callback: Callable[[ModuleType], None], *, otherwise: str) -> None:
    """Call ``callback`` with the module ``name`` after each execution of it.

    That is when it is imported, and again when it is reloaded. If it is imported already, the
    callback is called at once.
    An exception of the callback does not reach the import: it becomes a warning in the log.

    Args:
        name: the module's full name.
        callback: what to do to the module.
        otherwise: what the user loses if the callback fails.
    """
    hook = _Hook(callback, otherwise)
    sys.meta_path.insert(0, _Finder(name, hook))
    if name in sys.modules:
        hook.run(importlib.import_module(name))  # waits for a thread that is importing it
