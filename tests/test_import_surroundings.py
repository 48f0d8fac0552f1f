"""What surrounds an import: a home, a cache, variables, and imports before."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support import run_python

from aten_mx import environment
from aten_mx.backends import build as build_module
from aten_mx.backends import cpu, library

QUANTIZES = """
output, scale = aten_mx.quantize_mx(torch.ones(2, 64))
assert scale.view(torch.uint8).tolist() == [[119, 119]] * 2
"""

HOMELESS = f"""
import logging, os, pwd, sys
import torch

def no_entry(number):
    raise KeyError(number)

pwd.getpwuid = no_entry
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
logging.getLogger("aten_mx").addHandler(handler)
logging.getLogger("aten_mx").setLevel("INFO")
import aten_mx
import aten_mx.backends.cpu as cpu
{QUANTIZES}
expected = {{
    "": "home folder",
    "relative": "home folder",
    "/nowhere": "/nowhere/aten_mx/torch-",
    "chosen": "/chosen/torch-",
}}
for value, text in expected.items():
    os.environ.pop("ATEN_MX_CACHE_DIR", None)
    os.environ.pop("HOME", None)
    os.environ["XDG_CACHE_HOME"] = value
    if value == "chosen":
        os.environ["ATEN_MX_CACHE_DIR"] = "/chosen"
    records.clear()
    assert not cpu.load_as_configured()
    ((level, message),) = records
    assert level == "INFO", records
    assert text in message, (value, message)
    os.environ["ATEN_MX_CPU"] = "require"
    try:
        cpu.load_as_configured()
    except FileNotFoundError as error:
        assert text in str(error), error
    else:
        raise AssertionError
    os.environ["ATEN_MX_CPU"] = "auto"
print("imports")
"""


def test_a_user_without_a_home() -> None:
    unset = {"HOME": "relative", "XDG_CACHE_HOME": "", "ATEN_MX_CACHE_DIR": ""}
    assert run_python(HOMELESS, **unset, ATEN_MX_CPU="") == "imports\n"


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    default = tmp_path / ".cache" / "aten_mx"
    for chosen, users, expected in (
        ("", "", default),
        ("", "relative/folder", default),
        ("", ".", default),
        ("", "/absolute", Path("/absolute/aten_mx")),
        ("/chosen", "relative", Path("/chosen")),
        ("/chosen", "/absolute", Path("/chosen")),
        ("here", "", Path.cwd() / "here"),
    ):
        monkeypatch.setenv("ATEN_MX_CACHE_DIR", chosen)
        monkeypatch.setenv("XDG_CACHE_HOME", users)
        assert environment.cache_folder() == expected


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, default, choices in (
        ("CPU", "auto", cpu.SETTINGS),
        ("TRITON", "auto", ("auto", "off")),
        ("AUTOLOAD", "1", ()),
        ("CHECK", "0", ()),
        ("CXXFLAGS", "", ()),
    ):
        monkeypatch.setenv(f"ATEN_MX_{name}", "")
        assert environment.read(name, default, choices) == default
        monkeypatch.delenv(f"ATEN_MX_{name}")
        assert environment.read(name, default, choices) == default
        if choices:
            monkeypatch.setenv(f"ATEN_MX_{name}", "sometimes")
            with pytest.raises(ValueError, match=f"ATEN_MX_{name} must be one of auto, off.* got"):
                environment.read(name, default, choices)


def test_only_one_module_reads_the_environment() -> None:
    package = Path(environment.__file__).parent
    readers = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"(environ|getenv)\b.*ATEN_MX_|environ.get\(variable", path.read_text())
    ]
    assert readers == ["environment.py"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A library as a build leaves it, but for its content."""
    path = tmp_path / "torch-0" / "libaten_mx_cpu.so"
    library.make_private_folder(path.parent)
    built = path.parent / "built.so"
    built.write_bytes(b"\x7fELF" + b"content" * 1000)
    library.publish(built, path)
    library.verify(path)
    return path


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def text_in_its_place(path: Path) -> None:
    path.write_text("text")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed_tail(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-4096] + bytes(4096))


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def fifo_in_its_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def no_manifest(path: Path) -> None:
    library.manifest_path(path).unlink()


def damaged_manifest(path: Path) -> None:
    library.manifest_path(path).write_bytes(b'{"size": \xff')


def another_manifest(path: Path) -> None:
    library.manifest_path(path).write_text("[]")


def folder_for_manifest(path: Path) -> None:
    no_manifest(path)
    (library.manifest_path(path) / "inside").mkdir(parents=True)


DAMAGES = (
    cut_short,
    text_in_its_place,
    emptied,
    zeroed_tail,
    grown,
    folder_in_its_place,
    fifo_in_its_place,
    no_manifest,
    damaged_manifest,
    another_manifest,
    folder_for_manifest,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_build(
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
) -> None:
    """Never loaded, said so, and built anew; ``torch.ops.load_library`` would be a fault here."""
    whole = published.read_bytes()
    damage(published)
    monkeypatch.setattr(cpu, "library_path", lambda: published)
    monkeypatch.setattr(cpu.torch.ops, "load_library", lambda path: pytest.fail("loaded"))
    monkeypatch.setenv("ATEN_MX_CPU", "auto")
    cpu.load.cache_clear()
    assert not cpu.load_as_configured()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(published) in record.getMessage()
    monkeypatch.setenv("ATEN_MX_CPU", "require")
    with pytest.raises(library.RefusedError):
        cpu.load_as_configured()

    def compile_again(compiler: str, target: Path, report: object) -> None:
        built = target.parent / "again.so"
        built.write_bytes(whole)
        library.publish(built, target)

    monkeypatch.setattr(cpu, "compile_library", compile_again)
    monkeypatch.setattr(cpu, "compiler_command", lambda: "g++")
    lines: list[str] = []
    cpu.build(lines.append)
    assert not lines  # "already built" would be wrong
    assert published.read_bytes() == whole
    library.verify(published)
    cpu.build(lines.append)
    assert lines == [f"already built: {published}"]
    damage(published)
    cpu.build(lines.append, force=True)
    assert len(lines) == 1
    library.verify(published)


def test_a_build_that_others_may_write(published: Path) -> None:
    folder, cache = published.parent, published.parents[1]
    for place, mode, refused in (
        (published, 0o666, "may be written by other users"),
        (published, 0o664, "may be written by other users"),
        (published, 0o555, None),
        (folder, 0o777, "may be written by other users"),
        (folder, 0o1777, "may be written by other users"),
        (folder, 0o775, "may be written by other users"),
        (folder, 0o755, None),
        (cache, 0o777, "may be written by every user"),
        (cache, 0o1777, None),
    ):
        before = place.stat().st_mode
        place.chmod(mode)
        try:
            if refused is None:
                library.verify(published)
            else:
                with pytest.raises(library.RefusedError, match=refused):
                    library.verify(published)
        finally:
            place.chmod(before)
    folder.chmod(0o777)
    library.make_private_folder(folder)
    assert folder.stat().st_mode & 0o022 == 0
    library.verify(published)


def test_a_link_to_a_build(published: Path, tmp_path: Path) -> None:
    """What counts is the file, wherever it is."""
    link = tmp_path / "other" / published.name
    library.make_private_folder(link.parent)
    link.symlink_to(published)
    library.manifest_path(link).symlink_to(library.manifest_path(published))
    library.verify(link)
    published.parent.chmod(0o777)
    with pytest.raises(library.RefusedError, match="may be written by other users"):
        library.verify(link)
    published.unlink()
    with pytest.raises(FileNotFoundError):
        library.verify(link)


def test_a_build_of_someone_else(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's is as good as the user's own."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for place in (published, published.parent):
        os.chown(place, 12345, -1)
        with pytest.raises(library.RefusedError, match=r"another user \(number 12345\)"):
            library.verify(published)
        os.chown(place, 0, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    library.verify(published)
    os.chown(published.parent, 54321, -1)
    with pytest.raises(library.RefusedError, match="number 54321"):
        library.make_private_folder(published.parent)


def test_a_cache_that_cannot_be_written(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "library_path", lambda: published)
    monkeypatch.setattr(cpu, "compiler_command", lambda: "g++")

    def cannot_write(*_: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(cpu, "make_private_folder", cannot_write)
    lines: list[str] = []
    cpu.build(lines.append)
    assert lines == [f"already built: {published}"]
    with pytest.raises(PermissionError):
        cpu.build(lines.append, force=True)


def test_a_build_is_writable_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "torch-0" / "lib.so"
    before = os.umask(0)
    try:
        library.make_private_folder(path.parent)
        built = path.parent / "built.so"
        built.write_bytes(b"content")
        library.publish(built, path)
    finally:
        os.umask(before)
    for place in (path, path.parent, library.manifest_path(path)):
        assert place.stat().st_mode & 0o022 == 0
    assert build_module.publish is library.publish  # what the build calls


AGAIN = f"""
import importlib, sys
import torch
import aten_mx
{QUANTIZES}
importlib.reload(aten_mx)
{QUANTIZES}
del sys.modules["aten_mx"]
import aten_mx
{QUANTIZES}
for name in [name for name in sys.modules if name.split(".")[0] == "aten_mx"]:
    del sys.modules[name]
for _ in range(2):
    try:
        import aten_mx
    except ImportError as error:
        assert "keep them there (importlib.reload(aten_mx) works)" in str(error), error
    else:
        raise AssertionError
print("said")
"""


def test_imported_again() -> None:
    assert run_python(AGAIN) == "said\n"
