"""Backends that other packages bring by an entry point."""

from __future__ import annotations

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
    assert run_python(program, PYTHONPATH=str(tmp_path)).strip() == (
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
    output = run_python(program, PYTHONPATH=str(tmp_path), ATEN_MX_AUTOLOAD=autoload).strip()
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
