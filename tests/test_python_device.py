"""``examples/python_backend/python_device.py``: one process, as a device stays with its process."""

from __future__ import annotations

from pathlib import Path

from support import run_python

EXAMPLE = Path(__file__).parent.parent / "examples" / "python_backend"
PROGRAM = """
import torch, aten_mx, python_device
from aten_mx import emulated

calls = []
kernel = python_device.quantize.fn
python_device.quantize.unregister()
aten_mx.register_kernel(
    "quantize_mx", "PrivateUse1", lambda *a, **k: calls.append(a[3]) or kernel(*a, **k)
)
aten_mx.install_torch_alias()
host = torch.randn(4, 64)
x = host.to("pydevice")
want = [t.view(torch.uint8) for t in emulated.quantize_mx(host, -1, 32, "fp8_e4m3", 3)]

def same(outputs):
    assert all(t.device.type == "pydevice" for t in outputs)
    return all(torch.equal(t.host.view(torch.uint8), w) for t, w in zip(outputs, want))

E4M3 = torch.float8_e4m3fn
print(same(torch.ops.aten_mx.quantize_mx(x, -1, 32, E4M3, 3)))
print(same(torch.ops.aten_mx.quantize_mx.format(x, -1, 32, "fp8_e4m3", 3)))
print(same(torch.quantize_mx(x, -1, 32, E4M3, "rceil")))
print(same(x.quantize_mx(-1, 32, E4M3, 3)))
try:
    torch.quantize_mx(x, -1, 48, E4M3)
except ValueError as error:
    print(error)
print(calls)

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.ops.aten_mx.quantize_mx(x, -1, 32, torch.float8_e4m3fn, 3)

graph = torch.export.export(Model(), (x,)).graph
nodes = [n.target for n in graph.nodes if n.op == "call_function"]
print([str(n) for n in nodes if "getitem" not in str(n)])
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
from torch._dynamo.backends.common import aot_autograd
aot = aot_autograd(fw_compiler=backend)
print(same(torch.compile(Model(), backend=aot, fullgraph=True)(x)))
print([str(n.target) for g in graphs for n in g.graph.nodes if "aten_mx" in str(n.target)])
"""


def test_a_device_made_of_python() -> None:
    """Eager, by name, the alias, a bad call, export and AOTAutograd: one node and the kernel."""
    assert run_python(PROGRAM, PYTHONPATH=str(EXAMPLE)).splitlines() == [
        "True",
        "True",
        "True",
        "True",
        "quantize_mx: size 64 of dim 1 must be a multiple of block_size 48, got shape [4, 64]",
        "['fp8_e4m3', 'fp8_e4m3', 'fp8_e4m3', 'fp8_e4m3']",
        "['aten_mx.quantize_mx.default']",
        "True",
        "['aten_mx.quantize_mx.default']",
    ]
