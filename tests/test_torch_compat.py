"""PyTorch's private names stand in one place, and a missing one is no failed import of PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support import run_python

import aten_mx
from aten_mx import torch_compat

PACKAGE = Path(aten_mx.__file__).parent
COMPAT = Path(torch_compat.__file__).parent
OWN = "torch.ops.aten_mx."
# Private attributes of PyTorch's objects, which the name "torch" does not give away.
OF_OBJECTS = {"_destroy", "_dispatch_cache", "_lazy_call", "_op_dispatcher", "_schema"}


def is_private(name: str) -> bool:
    parts = name.split(".")
    private = (part.startswith("_") and not part.startswith("__") for part in parts[1:])
    return parts[0] == "torch" and any(private) and not name.startswith(OWN)


def private_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from filter(is_private, names)
        elif isinstance(node, ast.Attribute):
            if is_private(ast.unparse(node)) or node.attr in OF_OBJECTS:
                yield ast.unparse(node)


def test_the_search_finds_them() -> None:
    for source in (
        "import torch._dynamo",
        "import torch._dynamo as dynamo",
        "from torch._ops import OpOverload",
        "from torch import _C",
        "from torch.distributed.tensor.placement_types import _StridedShard",
        "x = torch._C.DispatchKey",
        "def f(op: torch._ops.OpOverload): pass",
        "library._destroy()",
        "op._schema",
    ):
        assert list(private_names(source)), source
    for source in (
        "import torch",
        "torch.__version__",
        "torch.ops.aten_mx._bitcast",
        "from torch.distributed.tensor import DTensor",
        "self._library",
    ):
        assert not list(private_names(source)), source


def test_private_names_stand_in_one_place() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if COMPAT not in path.parents and (names := set(private_names(path.read_text("utf-8"))))
    }
    assert not found
    for path in COMPAT.glob("*.py"):
        assert set(private_names(path.read_text("utf-8"))), f"{path.name} has none"


# Each private name on which a hook relies goes before its module's hook runs, as in a release that
# has renamed it. One process: an import of each module must work, and give one warning.
GONE = """
import functools, importlib, importlib.machinery, logging, sys, warnings
import torch
import aten_mx
from aten_mx.torch_compat import compiler

warnings.simplefilter("error", RuntimeWarning)  # a user's -W error must not make it an exception
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logging.getLogger("aten_mx").addHandler(handler)
logging.getLogger("aten_mx").propagate = False

def one_warning(*texts):
    (message,) = records
    records.clear()
    assert all(text in message for text in texts), message

find_spec = importlib.machinery.PathFinder.find_spec
removed = {}

class Later:
    "A later release: some modules lose names as they are executed."
    def find_spec(self, fullname, path, target=None):
        if fullname not in removed:
            return None
        spec = find_spec(fullname, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            for name in removed[module.__name__]:
                *path, last = name.split(".")
                delattr(functools.reduce(getattr, path, module), last)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), Later())
x = torch.ones(2, 64)

# The rules for DTensor are an import of their own, of names in several modules.
removed["torch.distributed.tensor"] = ["_op_schema.RuntimeSchemaInfo"]
import torch.distributed.tensor
one_warning("torch.distributed.tensor", "no sharding rules", "RuntimeSchemaInfo")
removed.clear()

# Nothing else of PyTorch reads these names while it is imported.
removed["torch._inductor.decomposition"] = ["decompositions"]
import torch._inductor.decomposition
one_warning("torch._inductor.decomposition", "may run the emulated kernel", "decompositions")
removed.clear()
import torch._dynamo.callback as callback
assert not records
removed["torch._dynamo.callback"] = ["callback_handler"]
importlib.reload(callback)
one_warning("torch._dynamo.callback", "compile caches", "callback_handler")
removed.clear()
importlib.reload(callback)
assert not records

# Names that a registration needs.
import torch._guards
kept = torch._guards.CompileContext
del torch._guards.CompileContext
handle = aten_mx.register_kernel("quantize_mx", "XPU", print)
one_warning("torch._dynamo", "CompileContext", "torch.compiler.reset()")
torch._guards.CompileContext = kept
compiler.clear_dispatch_cache = lambda op: op.no_such_cache
handle.unregister()
one_warning("torch._ops", "no_such_cache", "may not be called")
assert aten_mx.quantize_mx(x)[1].view(torch.uint8).tolist() == [[119, 119]] * 2
print("warned")
"""


def test_private_names_that_are_gone() -> None:
    assert run_python(GONE) == "warned\n"
