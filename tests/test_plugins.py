"""Backends that other packages bring by an entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import run_python


def write_plugin(folder: Path, text: str) -> None:
    """An installed package with one entry point."""
    (folder / "fake_plugin.py").write_text(text)
    info = folder / "fake_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[aten_mx.backends]\nfake = fake_plugin:register\n")


def test_a_plugin_that_imports_the_package_first(tmp_path: Path) -> None:
    """Importing the vendor's module first: the text says what to do."""
    write_plugin(tmp_path, "import aten_mx\ndef register(): pass\n")
    program = "try:\n import fake_plugin\nexcept RuntimeError as error:\n print(error)"
    assert run_python(program, PYTHONPATH=_before(tmp_path)).strip() == (
        "aten_mx: backend fake (fake_plugin:register, fake-plugin) could not be loaded: "
        "ImportError: fake_plugin is being imported and imports aten_mx, which would call register "
        "too early; import aten_mx inside that function. ATEN_MX_AUTOLOAD=0 imports aten_mx "
        "without such backends."
    )


PLUGIN = """
def register():
    {body}
"""


@pytest.mark.parametrize(
    ("body", "autoload", "expected"),
    [
        ("import aten_mx; aten_mx.register_kernel('quantize_mx', 'HPU', print)", "1", "print"),
        ("raise OSError('no firmware')", "1", "error"),
        ("raise OSError('no firmware')", "0", "nothing"),
    ],
)
def test_entry_points(tmp_path: Path, body: str, autoload: str, expected: str) -> None:
    write_plugin(tmp_path, PLUGIN.format(body=body))
    program = """
try:
    import aten_mx
    print([row.kernel for row in aten_mx.kernels() if row.dispatch_key == "HPU"][:1])
except RuntimeError as error:
    print(error)
"""
    output = run_python(program, PYTHONPATH=_before(tmp_path), ATEN_MX_AUTOLOAD=autoload).strip()
    assert (
        output
        == {
            "print": "['Python function builtins.print']",
            "nothing": "[]",
            "error": "aten_mx: backend fake (fake_plugin:register, fake-plugin) could not be "
            "loaded: OSError: no firmware. ATEN_MX_AUTOLOAD=0 imports aten_mx without such "
            "backends.",
        }[expected]
    )


TWO_PLUGINS = """
from pathlib import Path

def healthy():
    import aten_mx
    aten_mx.register_kernel("quantize_mx", "HPU", print)

def faulty():
    import aten_mx
    aten_mx.register_kernel("quantize_mx", "XPU", repr)  # so far it works
    if not Path(__file__).with_suffix(".ready").exists():
        raise OSError("no firmware")
    aten_mx.register_kernel("dequantize_mx", "XPU", repr)
"""

IMPORTED_AGAIN = """
import importlib, sys
from pathlib import Path
for _ in range(3):
    try:
        import aten_mx
    except RuntimeError as error:
        assert "backend b_faulty (fake_plugin:faulty" in str(error), error
        assert "OSError: no firmware" in str(error), error
    else:
        raise AssertionError
(Path(sys.argv[1]) / "fake_plugin.ready").touch()
import aten_mx
importlib.reload(aten_mx)
rows = [row for row in aten_mx.kernels() if row.dispatch_key in ("HPU", "XPU")]
print(sorted((row.op, row.dispatch_key) for row in rows if "." not in row.op))
"""


def test_one_that_fails_at_first(tmp_path: Path) -> None:
    """It is named each time, whichever registered its kernels before; then it works."""
    write_plugin(tmp_path, TWO_PLUGINS)
    entry_points = tmp_path / "fake_plugin-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text(
        "[aten_mx.backends]\na_healthy = fake_plugin:healthy\nb_faulty = fake_plugin:faulty\n"
        "c_healthy = json:JSONEncoder\n"
    )
    output = run_python(IMPORTED_AGAIN, str(tmp_path), PYTHONPATH=_before(tmp_path))
    assert output.strip() == str(
        [("dequantize_mx", "XPU"), ("quantize_mx", "HPU"), ("quantize_mx", "XPU")]
    )


def _before(folder: Path) -> str:
    return os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
