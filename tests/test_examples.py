"""The examples run as a reader would run them."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one example in a process of its own, where a warning is an error."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_export_mx_model(tmp_path: Path) -> None:
    saved = tmp_path / "encoder.pt2"
    result = run_example("export_mx_model.py", "--out", str(saved))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "38 nodes, 12 of them aten_mx" in result.stdout
    for target in ("quantize_mx.default", "dequantize_mx.default", "dequantize_mx.format"):
        assert f"   4 x aten_mx.{target}" in lines
    assert [line for line in lines if line.startswith("fresh process")] == [
        f"fresh process, batch {size}: equal bytes" for size in (1, 2, 5)
    ]
    assert saved.stat().st_size > 0


@pytest.mark.slow
def test_export_mx_model_reports_different_bytes(tmp_path: Path) -> None:
    """The comparison can fail: with a consumer that changes the result, the exit code is 1."""
    source = (EXAMPLES / "export_mx_model.py").read_text()
    changed = source.replace("[program(x) for", "[program(x) + 1e-3 for")
    assert changed != source
    script = tmp_path / "changed.py"
    script.write_text(changed)
    result = run_example(str(script))
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("DIFFERENT bytes") == 3
