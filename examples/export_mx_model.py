"""Export an MX-quantized encoder block, save it, run it in a fresh process: equal bytes.

    python examples/export_mx_model.py [--out encoder.pt2]

Weights are stored quantized: a payload and one scale per block of 32. Activations are quantized on
the way in. Both are dequantized before an ordinary matmul, so this runs on any device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F

import aten_mx  # defines torch.ops.aten_mx

WIDTH, HIDDEN, HEADS, BLOCK = 64, 256, 4, 32

# All that the process that loads the model needs: torch, aten_mx for the operators, the file.
CONSUMER = """
import sys, torch, aten_mx
model, inputs, outputs = sys.argv[1:]
program = torch.export.load(model).module()
torch.save([program(x) for x in torch.load(inputs)], outputs)
"""


class MXLinear(torch.nn.Module):
    """A linear layer with an MX-quantized weight.

    Args:
        linear: the layer to take the weight and bias of.
        elem_format: the weight's format. It goes through ``.format``, which gives formats below
            eight bits as raw ``uint8``: ``float4_e2m1fn_x2`` cannot be exported to disk.
    """

    def __init__(self, linear: torch.nn.Linear, elem_format: str) -> None:
        super().__init__()
        self.elem_format = elem_format
        payload, scale = torch.ops.aten_mx.quantize_mx.format(
            linear.weight.detach(), -1, BLOCK, elem_format
        )
        self.register_buffer("payload", payload)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize ``x`` to MXFP8, then multiply the dequantized operands."""
        code, scale = torch.ops.aten_mx.quantize_mx(x, -1, BLOCK, torch.float8_e4m3fn)
        x = torch.ops.aten_mx.dequantize_mx(code, scale, -1, BLOCK, torch.float32)
        weight = torch.ops.aten_mx.dequantize_mx.format(
            self.payload, self.scale, -1, BLOCK, self.elem_format, torch.float32
        )
        return F.linear(x, weight, self.bias)


class EncoderBlock(torch.nn.Module):
    """Self-attention and MLP, each after a LayerNorm: FP8 weights in one, FP4 in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = MXLinear(torch.nn.Linear(WIDTH, 3 * WIDTH), "fp8_e4m3")
        self.proj = MXLinear(torch.nn.Linear(WIDTH, WIDTH), "fp8_e4m3")
        self.mlp_norm = torch.nn.LayerNorm(WIDTH)
        self.up = MXLinear(torch.nn.Linear(WIDTH, HIDDEN), "fp4_e2m1")
        self.down = MXLinear(torch.nn.Linear(HIDDEN, WIDTH), "fp4_e2m1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Encode ``x`` of shape ``(batch, tokens, WIDTH)``."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


def run_elsewhere(model: Path, inputs: list[torch.Tensor], folder: Path) -> list[torch.Tensor]:
    """Run the saved ``model`` in a fresh process, one that has never seen its Python classes."""
    torch.save(inputs, folder / "inputs.pt")
    arguments = [str(model), str(folder / "inputs.pt"), str(folder / "outputs.pt")]
    subprocess.run([sys.executable, "-c", CONSUMER, *arguments], check=True)
    outputs: list[torch.Tensor] = torch.load(folder / "outputs.pt")
    return outputs


def main() -> int:
    """Export, save, load, run and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE.pt2", help="keep the exported model")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = EncoderBlock().eval()
    stored = sum(buffer.nbytes for buffer in model.buffers())
    full = 4 * sum(s.numel() * BLOCK for name, s in model.named_buffers() if name.endswith("scale"))
    print(f"weights: {full:,} bytes as float32, {stored:,} bytes as MX payload and scale")

    batch = torch.export.Dim("batch", min=1, max=64)
    example = torch.randn(2, 16, WIDTH)
    with torch.no_grad():
        program = torch.export.export(model, (example,), dynamic_shapes={"x": {0: batch}})
    nodes = Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")
    ours = {target: count for target, count in nodes.items() if target.startswith("aten_mx.")}
    print(f"exported: {nodes.total()} nodes, {sum(ours.values())} of them aten_mx")
    for target, count in sorted(ours.items()):
        print(f"  {count:2} x {target}")

    inputs = [torch.randn(size, 16, WIDTH) for size in (1, 2, 5)]
    with tempfile.TemporaryDirectory() as name:
        path = args.out or Path(name) / "encoder.pt2"
        torch.export.save(program, path)
        print(f"saved: {path}, {path.stat().st_size:,} bytes")
        outputs = run_elsewhere(path, inputs, Path(name))

    different = 0
    for x, output in zip(inputs, outputs, strict=True):
        with torch.no_grad():
            eager = model(x)
        equal = torch.equal(eager.view(torch.uint8), output.view(torch.uint8))
        different += not equal
        print(f"fresh process, batch {len(x)}: {'equal' if equal else 'DIFFERENT'} bytes")
    return 1 if different else 0


if __name__ == "__main__":
    print(f"aten_mx {aten_mx.__version__}, torch {torch.__version__}")
    sys.exit(main())
