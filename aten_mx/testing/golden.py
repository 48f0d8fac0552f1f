"""Reads the golden vectors; ``aten_mx/data/README.md`` has their format."""

from __future__ import annotations

import csv
from importlib.resources import files
from itertools import cycle, islice
from typing import NamedTuple

import torch
from torch import Tensor

from aten_mx.testing.inputs import BLOCK_SIZE

_STORAGE = {
    "float32": (torch.float32, torch.int32, 32),
    "bfloat16": (torch.bfloat16, torch.int16, 16),
    "float16": (torch.float16, torch.int16, 16),
}


class Vector(NamedTuple):
    """One row of the file, its lists filled up to a whole block."""

    op: str
    name: str
    elem_format: str
    modes: tuple[str, ...]
    dtype: torch.dtype
    values: Tensor
    """``dtype``, (32,): the input of ``quantize_mx``, the output of ``dequantize_mx``."""
    scale: int
    codes: Tensor
    """uint8, (32,): one code per byte."""


def read_vectors() -> list[Vector]:
    """All vectors of the file."""
    text = (files("aten_mx") / "data" / "golden_vectors.csv").read_text(encoding="ascii")
    return [_vector(row) for row in csv.DictReader(text.splitlines())]


def _vector(row: dict[str, str]) -> Vector:
    dtype, storage, width = _STORAGE[row["dtype"]]
    return Vector(
        row["op"],
        row["name"],
        row["elem_format"],
        tuple(row["modes"].split()),
        dtype,
        torch.tensor(_block(row["values"], width), dtype=storage).view(dtype),
        int(row["scale"], 16),
        torch.tensor(_block(row["codes"], 0), dtype=torch.uint8),
    )


def _block(text: str, signed_width: int) -> list[int]:
    """The hexadecimal numbers, repeated up to a whole block; signed if a width is given."""
    numbers = [int(word, 16) for word in text.split()]
    if signed_width:
        numbers = [n - (n >> (signed_width - 1) << signed_width) for n in numbers]
    return list(islice(cycle(numbers), BLOCK_SIZE))
