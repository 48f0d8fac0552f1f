"""The benchmarks' command lines: help, wrong arguments, and what the machine lacks, in one line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "common"])
def test_arguments(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for variable in ("ATEN_MX_CPU", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"):
        monkeypatch.setenv(variable, "off")  # a benchmark sets them at import; restored after
    module, common = importlib.import_module(name), importlib.import_module("common")
    options = [["--help"], ["--no-such"]]
    options += [["--json", str(ROOT)]] if "--json" in Path(module.__file__).read_text() else []
    for arguments, code in zip(options, (0, 2, 2), strict=False):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            common.run(module.main)
        assert ended.value.code == code
        out, err = capsys.readouterr()
        assert ("usage:" in out) == (code == 0)
        if arguments[0] == "--json":
            assert err.startswith(f"aten_mx {name}: ")
            assert err.count("\n") == 1
