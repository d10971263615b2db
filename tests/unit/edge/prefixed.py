"""The hand-written decoder with a massive first token, and bundles of it with that token as their prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fakes.small_tokenizers import byte_level_tokenizer
from unit.edge.bundled import deployed
from unit.edge.exported import FAST, exported, optimised_toy, quantised

from octavo_common.text.bundle import TokenizerBundle
from octavo_device.feeds import Decoding
from octavo_edge.artifacts import OptimisedGraph
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.recipe import Precision, QType, Recipe

# The token whose activation is massive, and what is said of it.
MASSIVE, MASSIVE_TEXT = 0, "<s>"
# Single tokens each, whatever stands beside them.
LETTERS = "ABCDEFHJKLMQRUVWXYZ456789"


def spiky_toy(folder: Path, **options: object) -> OptimisedGraph:
    """Float graphs whose token 0, the model's BOS, has a massive activation."""
    source = optimised_toy(folder, spike=True, **options)
    TokenizerBundle(
        tokenizer_json=byte_level_tokenizer().to_str(),
        bos_token=MASSIVE_TEXT,
        eos_token="</s>",
        eos_ids=(1,),
        add_bos=True,
    ).to_directory(folder, model_type="llama")
    return source


def recipe(*prefix: int | str, kv_cache: QType = QType.INT16) -> Recipe:
    """W8A16 with integers in the residual stream too."""
    precision = Precision(residual=QType.INT16, kv_cache=kv_cache)
    return replace(FAST, precision=precision, prefix=prefix)


def bundle_of(source: OptimisedGraph, folder: Path, asked: Recipe, split: SplitOptions | None = None) -> Path:
    """The bundle for ONNX Runtime, beside the graphs that it was made of."""
    model, _ = exported(quantised(source, folder / "quantised", asked), folder / "exported", split)
    return deployed(model, folder)[0].path


class ByHand:
    """Whole quantised graphs behind keys and values that the float graph gave for the prefix; no code of prefixes."""

    def __init__(self, source: Path, folder: Path, prefix: list[int]) -> None:
        exact = OrtModel(source, num_threads=1)
        self._model, self._num_before = OrtModel(folder, num_threads=1), len(prefix)
        self._before = exact(8, Decoding(exact.spec, exact).inputs(8, prefix))

    def logits(self, tokens: list[int], ars: Sequence[int]) -> np.ndarray:
        """`[tokens, V]`."""
        spec = self._model.spec
        decoding = Decoding(spec, self._model)
        decoding.cache.append(self._before, self._num_before)
        # Up to where the largest past is full, and what one more call takes.
        full = spec.past_length(min(ars)) - self._num_before
        pieces = [piece for piece in (tokens[:full], tokens[full:]) if piece]
        return np.concatenate([decoding.logits(piece, ars=ars) for piece in pieces])

    def greedy(self, prompt: list[int], num_tokens: int, ars: Sequence[int] = (1,)) -> list[int]:
        """The likeliest tokens, with all fed anew for each."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(np.argmax(self.logits(tokens, ars)[-1])))
        return tokens[len(prompt) :]
