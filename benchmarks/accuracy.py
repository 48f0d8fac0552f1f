"""What each format and scale mode loses, on real weights and on heavy-tailed data.

``python benchmarks/accuracy.py`` writes ``benchmarks/results/accuracy.json``, which ``make rfc``
turns into the proposal's table and figure. Both data sets go through the demo's measurement: the
first is the one ``python -m aten_mx demo`` shows. Every kernel gives the same bytes, so the numbers
depend on neither the machine nor the kernel.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch
from common import cpu_model, run
from torch import Tensor

import aten_mx
from aten_mx.commands.files import check_writable, write_json
from aten_mx.demo.measure import measure
from aten_mx.demo.weights import MINILM_NAME, Model, default_path, read_model

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
SEED = 0
DEGREES = 3  # of freedom: the fewest with a variance, so the heaviest tail that has an SQNR
SHAPE = (1024, 2048)


def heavy_tailed() -> Tensor:
    """Student's t with three degrees of freedom, each row at a scale of its own.

    A stand-in for gradients, whose tails are heavier than a normal distribution's. A row's scale is
    log-uniform over 16 binades, so that block maxima lie evenly over their binade: otherwise the
    result would depend on where the one scale happens to lie.
    """
    generator = torch.Generator().manual_seed(SEED)
    normal = torch.randn(*SHAPE, DEGREES + 1, generator=generator)
    student = normal[..., 0] / normal[..., 1:].square().mean(-1).sqrt()
    return student * torch.exp2(16 * torch.rand(SHAPE[0], 1, generator=generator) - 24)


def rows_of(model: Model) -> list[dict[str, Any]]:
    """The demo's table for a model, as plain values."""
    return [
        {
            "format": row.fmt.name,
            "mode": row.mode.name.lower(),
            "bits": row.bits_per_value,
            "sqnr_db": round(row.sqnr_db, 2),
            "worst_of_max_percent": round(100 * row.worst_of_max, 2),
            "saturated_percent": round(row.saturated_percent, 3),
        }
        for row in measure(model).rows
    ]


def main() -> None:
    """Measure both data sets and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="where to write")
    args = parser.parse_args()
    check_writable("--json", args.json)
    from safetensors.torch import save_file  # --help works without it

    weights = read_model(default_path())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "student.safetensors"
        save_file({"student.weight": heavy_tailed()}, path)
        student = rows_of(read_model(path))
    report = {
        "about": {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "aten_mx": aten_mx.__version__,
            "cpu": cpu_model(),
        },
        "data": {
            "weights": {
                "what": f"the {len(weights.weights)} linear weights of {MINILM_NAME}, "
                f"{weights.elements:,} elements",
                "rows": rows_of(weights),
            },
            "heavy-tailed": {
                "what": f"Student's t, {DEGREES} degrees of freedom, rows at scales over 16 "
                f"binades, {SHAPE[0] * SHAPE[1]:,} elements, seed {SEED}",
                "rows": student,
            },
        },
    }
    write_json(args.json, report)


if __name__ == "__main__":
    run(main)
