"""For ``test_demo*.py``: a small model, and what one line of an error looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file


def make_tensors() -> dict[str, torch.Tensor]:
    """Weights of three dtypes over many binades, and one tensor for each reason to be left out."""
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(48, 64, generator=generator)
    wide *= torch.exp2(torch.randint(-20, 20, (48, 1), generator=generator))
    wide[3] = 0
    wide[4, 5] = 2.0**-140
    return {
        "a.in_proj_weight": wide,
        "a.lm_head.weight": torch.randn(8, 96, generator=generator).to(torch.bfloat16),
        "b.weight": torch.randn(5, 32, generator=generator).to(torch.float16),
        "b.bias": torch.ones(64),
        "norm.weight": torch.ones(64),
        "conv.weight": torch.ones(2, 2, 4, 32),
        "word_embeddings.weight": torch.ones(7, 32),
        "odd.weight": torch.ones(3, 33),
        "double.weight": torch.ones(2, 32, dtype=torch.float64),
        "empty.weight": torch.ones(0, 32),
    }


def save_model(folder: Path) -> Path:
    """The file with :func:`make_tensors`."""
    path = folder / "small.safetensors"
    save_file(make_tensors(), path)
    return path


def assert_one_line(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """Nothing on stdout, one line on stderr that holds every part."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("aten_mx demo: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
