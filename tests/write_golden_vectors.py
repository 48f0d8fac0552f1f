"""Writes ``aten_mx/data/golden_vectors.csv`` from the named cases.

    python tests/write_golden_vectors.py

The bytes are worked out by hand (``cases.py``); nothing here runs the package's kernels.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from cases import DequantizeCase, QuantizeCase, _bits
from cases_all import QUANTIZE_CASES
from cases_dequantize import DEQUANTIZE_CASES

PATH = Path(__file__).parent.parent / "aten_mx" / "data" / "golden_vectors.csv"
HEADER = ("op", "name", "elem_format", "modes", "dtype", "values", "scale", "codes")
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
DIGITS = {"f32": 8, "bf16": 4, "f16": 4}


def _hex(numbers: Sequence[int], digits: int) -> str:
    return " ".join(f"{int(number):0{digits}x}" for number in numbers)


def rows() -> list[tuple[str, ...]]:
    """One row a case and dtype."""
    table = []
    cases: list[QuantizeCase | DequantizeCase] = [*QUANTIZE_CASES, *DEQUANTIZE_CASES]
    for case in cases:
        if isinstance(case, QuantizeCase):
            op, modes, dtypes = "quantize_mx", case.modes, case.dtypes.split()
        else:
            op, modes, dtypes = "dequantize_mx", "", [case.dtype]
        table += [
            (
                op,
                case.name,
                case.fmt,
                modes,
                DTYPES[dtype],
                _hex(_bits(case.values, dtype), DIGITS[dtype]),
                _hex([case.scale], 2),
                _hex(case.codes, 2),
            )
            for dtype in dtypes
        ]
    return table


def text() -> str:
    """The whole file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows())
    return file.getvalue()


if __name__ == "__main__":
    PATH.write_text(text())
    print(f"{PATH}: {len(rows())} vectors")
