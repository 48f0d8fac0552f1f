"""CompositeImplicitAutograd against CompositeExplicitAutograd: how PyTorch treats the two.

Defines one op twice, with the same schema, fake and emulated kernel, under either dispatch key, and
records what each part of PyTorch does with it, with and without a kernel for the device. No times:
the answers are the same on every machine.

``python benchmarks/dispatch_comparison.py`` prints them and writes
``benchmarks/results/dispatch.json``, which ``make rfc`` turns into the proposal's table.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

# A graph from the disk would skip what is counted here.
os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "ATEN_MX_CPU": "off"}

import torch
from common import run
from torch import Tensor
from torch._subclasses import FakeTensorMode

import aten_mx
from aten_mx.commands.files import check_writable, write_json
from aten_mx.dispatch import device_has_kernel
from aten_mx.schema import empty_outputs
from aten_mx.validation import describe_quantize

RESULTS = Path(__file__).parent / "results" / "dispatch.json"
KEYS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
# The emulated kernel without its writes in place: Inductor's table inlines after functionalization.
EMULATED = aten_mx.decomposition_table()[torch.ops.aten_mx.quantize_mx.format]
CALLS = Counter[str]()
LIBRARIES: dict[str, torch.library.Library] = {}


def _arguments(self: Tensor) -> tuple[Any, ...]:
    return self, -1, 32, "fp8_e4m3", 0


def _fake(self: Tensor, *args: Any) -> Any:
    return empty_outputs(describe_quantize(self, *args), self.device)


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Tensor) -> Any:
        CALLS[name] += 1
        return function(*_arguments(self))

    return run


def define(key: str) -> Any:
    """An op of the namespace ``key``: with a fake, no gradients, the emulated kernel."""
    library = LIBRARIES[key] = torch.library.Library(key, "DEF")
    library.define("quantize(Tensor self) -> (Tensor output, Tensor scale)")
    torch.library.register_fake(f"{key}::quantize", _counting("fake", _fake), lib=library)
    library.impl("quantize", torch.library.fallthrough_kernel, "Autograd")
    library.impl("quantize", _counting("composite", EMULATED), key)
    return getattr(torch.ops, key).quantize.default


@contextmanager
def cpu_kernel(op: Any) -> Iterator[None]:
    """A kernel for the CPU, while it lasts."""
    library = torch.library.Library(op.namespace, "IMPL")
    library.impl("quantize", _counting("kernel", EMULATED), "CPU")
    try:
        yield
    finally:
        library._destroy()


def calls_of(function: Callable[[], Any]) -> Counter[str]:
    """Which implementations a call reaches."""
    CALLS.clear()
    function()
    return CALLS.copy()


class Quantize(torch.nn.Module):
    """The op as a model."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Any:
        return self.op(x)


def nodes(op: Any, program: torch.export.ExportedProgram) -> str:
    """Whether the op is still there as one node."""
    kept = sum(node.target is op for node in program.graph.nodes)
    return "one node" if kept == 1 else "inlined"


def batched(op: Any, x: Tensor) -> str:
    """How vmap gets by where nobody wrote a rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's word on the loop
        calls = calls_of(lambda: torch.func.vmap(op)(torch.stack([x, x, x])))
    return "one call" if calls["composite"] == 1 else f"a loop of {calls['composite']} calls"


def compiled(op: Any, x: Tensor) -> str:
    """What runs under the default ``torch.compile``, once it is compiled."""
    from torch._inductor.decomposition import fast_random_decomps

    torch._dynamo.reset()
    op._dispatch_cache.clear()
    fast_random_decomps.cache_clear()  # its copy of the table
    function = torch.compile(op, fullgraph=True)
    function(x)
    calls = calls_of(lambda: function(x))
    names = ("kernel", "composite")
    return next((f"one node: the {name} runs" for name in names if calls[name]), "inlined")


def declining(op: Any) -> Callable[[Tensor], Any]:
    """An entry of Inductor's table that inlines only where the device has no kernel."""

    def entry(self: Tensor) -> Any:
        if device_has_kernel(op.name(), self.device):
            return NotImplemented
        return EMULATED(*_arguments(self))

    return entry


def answers(op: Any) -> dict[str, str]:
    """The table's column for one key."""
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import make_fallback

    x = torch.randn(4, 64)
    program = torch.export.export(Quantize(op), (x,))
    with FakeTensorMode() as mode:
        fake = calls_of(lambda: op(mode.from_tensor(x)))
    found = {
        "eager, device without a kernel": "the composite" if calls_of(lambda: op(x)) else "",
        "`FakeTensor` runs": "the composite" if fake["composite"] else "the fake",
        '`device="meta"` runs': "the " + " and ".join(calls_of(lambda: op(x.to("meta")))),
        "`torch.func.vmap` without a rule": batched(op, x),
        "`torch.export.export`": nodes(op, program),
        "`run_decompositions()`": nodes(op, program.run_decompositions()),
        "`torch.compile`": compiled(op, x),
    }
    with cpu_kernel(op):
        program = torch.export.export(Quantize(op), (x,))
        found["`run_decompositions()`, device with a kernel"] = nodes(
            op, program.run_decompositions()
        )
        found["`torch.compile`, device with a kernel"] = compiled(op, x)
        decompositions.pop(op, None)
        found["the same, without Inductor's table entry"] = compiled(op, x)
        decompositions[op] = _counting("composite", EMULATED)
        found["the same, with a table entry by hand"] = compiled(op, x)
        # What the entry declines needs a fallback, which Inductor makes only for ops without entry.
        make_fallback(op, override_decomp=True)
        decompositions[op] = declining(op)
        found["the same, with an entry that declines"] = compiled(op, x)
    found["`torch.compile` with that entry, no kernel"] = compiled(op, x)
    return found


def main() -> None:
    """Ask both, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="where to write")
    args = parser.parse_args()
    check_writable("--json", args.json)
    ops = {key: define(key) for key in KEYS}  # both before Inductor is first imported
    columns = {key: answers(op) for key, op in ops.items()}
    for question in columns[KEYS[0]]:
        print(f"{question:50}", *(f"{columns[key][question]:32}" for key in KEYS))
    about = {"date": date.today().isoformat(), "torch": torch.__version__}
    report = {"about": about | {"aten_mx": aten_mx.__version__}, "answers": columns}
    write_json(args.json, report)


if __name__ == "__main__":
    run(main)
