"""The command line: names that hold anything, readers that have gone, files that cannot be written.

Each input of one kind is a row of a list. Only what a process alone can show starts one.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from demo_support import assert_one_line
from safetensors.torch import save_file

import aten_mx
from aten_mx import registry
from aten_mx.__main__ import main
from aten_mx.backends import cpu
from aten_mx.backends.build import BuildError
from aten_mx.commands import streams
from aten_mx.commands.files import FileError, check_writable, write_file, write_json
from aten_mx.commands.text import LONGEST_NAME, one_line, printable, shown_name
from aten_mx.demo import measure, plot, weights
from aten_mx.testing import Report, Result

RAW = (
    *("\x1b[2J", "a\nfp8_e4m3  floor  1.00", "a\r", "\t", "\0", "\x7f", "\x9b31m", "\x85"),
    *("\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\xad", "\xa0"),
    *("\ud800", "\udcff", "\ue000", "\U000e0041"),
)
KEPT = ("a.weight", "name with  spaces", "gewicht_ü", "重み", "שלום", "$x$", r"\n", "😀")


def test_printable_escapes_what_has_no_picture() -> None:
    for raw in RAW:
        text = printable(raw)
        assert text.isprintable(), ascii(raw)
        assert text != raw
        assert printable(text) == text  # a text may pass twice
    for kept in KEPT:
        assert printable(kept) == shown_name(kept) == one_line(kept) == kept
    assert one_line(" first \n\n  second\x1b\r\n") == "first second\\x1b"


def test_long_names_lose_their_middle() -> None:
    for length in (LONGEST_NAME - 1, LONGEST_NAME, LONGEST_NAME + 1, 100_000):
        for char in ("x", "\x1b", "\U000e0041"):
            text = shown_name(char * length)
            assert len(text) <= LONGEST_NAME
            assert text.isprintable()
    assert shown_name("a" * LONGEST_NAME) == "a" * LONGEST_NAME
    assert shown_name("a" + "x" * 999 + "z").endswith("z")


def hostile_model(folder: Path) -> Path:
    """Tensors whose names hold everything, in a file whose name does."""
    path = folder / "m\x1b[31m\n$\\frac{$\u202e.safetensors"
    names = [f"{raw}.weight" for raw in RAW if raw.isascii() or ord(raw[0]) not in (0xD800, 0xDCFF)]
    save_file({name: torch.ones(1, 33) for name in names} | {"w.weight": torch.ones(2, 32)}, path)
    return path


def test_hostile_names_in_table_plot_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hostile_model(tmp_path)
    monkeypatch.setattr("aten_mx.demo.report.NAMES_SHOWN", len(RAW))
    target, picture = tmp_path / "out.json", tmp_path / "p\u202e$x.png"
    options = ["--json", str(target), "--plot", str(picture)]
    assert main(["demo", "--model", str(path), *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(line.isprintable() for line in out.split("\n"))
    rows = [line for line in out.split("\n") if line.startswith("fp8_e4m3  ")]
    assert len(rows) == len(aten_mx.ScaleCalculationMode)
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["model"] == str(path)
    assert found["weights"] == {"w.weight": [2, 32]}
    assert "\x1b[2J.weight" in next(iter(found["skipped"].values()))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [path.name, target.name, picture.name]
    )


def test_titles_are_no_formulas(tmp_path: Path) -> None:
    for title in ("$x$", "$\\frac{$", "$$", "a\n$\x00$", "\ud800", "x" * 9999):
        plot.draw([], title, tmp_path / "p.svg")


def test_json_without_infinity(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(1, 32)}, tmp_path / "zeros.safetensors")
    target = tmp_path / "zeros.json"
    options = ["--json", str(target)]
    assert main(["demo", "--model", str(tmp_path / "zeros.safetensors"), *options]) == 0
    rows = json.loads(target.read_text(), parse_constant=pytest.fail)["rows"]
    assert {row["sqnr_db"] for row in rows} == {"inf"}


def test_hostile_names_in_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for raw in RAW:
        assert main(["demo", "--model", f"{tmp_path}/no{raw}"]) == 2
        assert_one_line(capsys, f"no{printable(raw)}: no such file")
        with pytest.raises(SystemExit):
            main(["demo", f"--none={raw}"])
        assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


def test_hostile_names_in_a_conformance_report() -> None:
    for raw in RAW:
        report = Report("cpu", {"quantize_mx": f"kernel {raw}"}, [Result(raw, f"got {raw}\nPASS")])
        lines = str(report).split("\n")
        assert len(lines) == 3
        assert all(line.isprintable() for line in lines)
        json.loads(report.to_json()).items()


def test_experts_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every expert's matrix is quantized along the last dimension; all else is listed."""
    generator = torch.Generator().manual_seed(0)
    stacked = torch.randn(8, 64, 64, generator=generator)
    left_out = {
        "experts.gate_up_proj_bias": torch.ones(8, 64),
        "experts.stack_bias": torch.ones(2, 2, 32),
        "conv.weight": torch.ones(4, 4, 32),
        "experts.blocks": torch.ones(2, 2, 2, 32),
        "experts.odd": torch.ones(2, 4, 33),
        "experts.none": torch.ones(0, 4, 32),
        "experts.wide": torch.ones(2, 4, 32, dtype=torch.float64),
        "step": torch.tensor(3.0),
    }
    files = {
        "stacked": {"model.experts.gate_up_proj": stacked, **left_out},
        "apart": {f"experts.{i}.up.weight": stacked[i].clone() for i in range(8)},
    }
    results: dict[str, Any] = {}
    for name, tensors in files.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path)
        model = weights.read_model(path)
        results[name] = measure.measure(model).rows
        assert model.elements == 8 * 64 * 64
    assert {
        n
        for names in weights.read_model(tmp_path / "stacked.safetensors").skipped.values()
        for n in names
    } == set(left_out)
    assert results["stacked"] == results["apart"]
    for name in ("experts.w1", "block_sparse_moe.input_linear.weight"):
        save_file({name: stacked}, tmp_path / "one.safetensors")
        assert list(weights.read_model(tmp_path / "one.safetensors").weights) == [name]
    assert main(["demo", "--model", str(tmp_path / "stacked.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "1 linear weights, 32,768 elements" in out
    assert all(name in out for name in ("experts.odd", "experts.none", "experts.wide", "step"))


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(old)

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    for path in (old, link, tmp_path / "new.json"):
        with pytest.raises(FileError, match=r"json cannot be written: No space left on device$"):
            write_file("--json", path, fail)
    with pytest.raises(ValueError, match="JSON"):
        write_json(old, [float("nan")])
    assert old.read_text() == "old"
    write_json(link, ["\ud800\x1b"])
    assert json.loads(old.read_text()) == ["\ud800\x1b"]
    assert link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"old.json", "link.json"}
    write_json(Path(os.devnull), [1])  # a device is written to, not replaced
    assert not Path(os.devnull).is_file()


def test_unwritable_files_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    bad = (tmp_path, tmp_path / "none" / "x", tmp_path / "file" / "x", "", ".", "/", "n" * 999)
    commands = (["demo", "--model", "none"], ["kernels"], ["conformance", "--device", "cpu"])
    for path in map(str, bad):
        for command in commands:
            assert main([*command, "--json", path]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert err.startswith(f"aten_mx {command[0]}: --json ")
            assert "cannot be written: " in err
            assert err.count("\n") == 1
    for name in ("old\0", "\ud800"):
        with pytest.raises(FileError):
            check_writable("--json", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_kernels_in_a_users_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for capability, words in (("AVX512", "AVX-512"), ("AVX2", "AVX2"), ("DEFAULT", "portable")):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        assert registry._kind("/x/aten_mx/csrc/register.cpp:117") == f"native CPU kernel ({words})"
    assert registry._kind("/x/other.cpp:3") == registry._kind("") == "C++ library"
    assert registry._kind("/x/other.py:3") == "Python function"

    handle = aten_mx.register_kernel("quantize_mx", "PrivateUse1", test_printed_fault)
    try:
        assert main(["kernels", "--json", str(tmp_path / "k.json")]) == 0
    finally:
        handle.unregister()
    out = capsys.readouterr().out
    assert f"Python function {__name__}.test_printed_fault" in out
    assert out.splitlines()[0].split()[-1] == "source"
    rows = json.loads((tmp_path / "k.json").read_text())["kernels"]
    found = [row for row in rows if row["dispatch_key"] == "PrivateUse1"]
    assert len(found) == 2
    assert all(row["source"].startswith(f"{__file__}:") for row in found)
    assert {row["kernel"] for row in rows if row["compiled"] == "inlined"} == {"emulated kernel"}


def test_printed_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = "g++ -c a.cpp\nfailed:\nIn file a.cpp\na.cpp:1: error: no \x1b\nnote: more"
    for error, line in (
        (BuildError("no C++ compiler"), "no C++ compiler"),
        (
            BuildError(compiler),
            "the compiler failed, its output is above: a.cpp:1: error: no \\x1b",
        ),
        (PermissionError(13, "Permission denied", "/c\n"), "[Errno 13] Permission denied: '/c\\n'"),
    ):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(cpu, "build", fail)
        assert main(["build"]) == 2
        out, err = capsys.readouterr()
        assert err == f"aten_mx build: {line}\n"
        assert ("note: more" in out) == ("compiler failed" in line)
    assert main(["kernels", "--import", "no_such\x1b"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("aten_mx kernels: no_such\\x1b: ModuleNotFoundError: ")
    assert err.count("\n") == 1


def test_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for term, redraws in ((None, False), ("", False), ("dumb", False), ("xterm", True)):
        monkeypatch.delenv("TERM", raising=False)
        if term is not None:
            monkeypatch.setenv("TERM", term)
        for columns in ("1", "0", "-1", "x", "80"):
            monkeypatch.setenv("COLUMNS", columns)
            stream = Terminal()
            monkeypatch.setattr(sys, "stderr", stream)
            streams.redraw("a\x1b\n" * 99)
            assert bool(stream.getvalue()) == redraws
            assert "\n" not in stream.getvalue()
    assert not streams.can_redraw(io.StringIO())


def test_streams_that_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream, a closed one, and an encoding without the characters."""
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            assert main(["demo", "--model", "none"]) == 2
            assert main(["kernels"]) == 0
            assert sys.stdout is stream
    buffer = io.BytesIO()
    narrow = io.TextIOWrapper(buffer, encoding="ascii")
    monkeypatch.setattr(sys, "stderr", narrow)
    assert main(["demo", "--model", "重み"]) == 2
    assert narrow.errors == "strict"
    assert buffer.getvalue() == b"aten_mx demo: \\u91cd\\u307f: no such file\n"


def test_a_reader_that_has_gone_in_a_process() -> None:
    """The exit code is that of other tools, and nothing is on stderr, also at the exit."""
    command = [sys.executable, "-W", "error", "-m", "aten_mx", "kernels"]
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (141, b"")
    with Path("/dev/full").open("wb") as full:
        disk = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert disk.returncode == 2
    assert disk.stderr == b"aten_mx output: cannot be written: No space left on device\n"
