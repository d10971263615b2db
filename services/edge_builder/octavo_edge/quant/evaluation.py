"""How much worse a quantised graph predicts real text than the float one. Knows no quantiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.spec import GraphSpec
from octavo_edge.graph.metrics import centred_sqnr_db, mean_kl, perplexity, sqnr_db, top1_agreement


class Outputs:
    """What a graph says of texts, each by itself: outputs in files, one for each text and output."""

    def __init__(self, folder: Path, texts: Sequence[Sequence[int]]) -> None:
        self.texts = tuple(tuple(text) for text in texts)
        self._folder = folder
        folder.mkdir(parents=True)

    def put(self, index: int, name: str, values: NDArray[Any]) -> None:
        """Keep an output of a text."""
        np.save(self._folder / f"{index}.{name}.npy", values)

    def get(self, index: int, name: str) -> NDArray[Any]:
        """An output of a text."""
        return np.load(self._folder / f"{index}.{name}.npy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The quantised graph against the float one, over all positions of all texts."""

    sqnr_db: float
    min_window_sqnr_db: float
    centred_sqnr_db: float
    mean_kl_nats: float
    top1_ratio: float
    float_ppl: float
    ppl: float
    cache_sqnr_db: dict[str, float]  # by output, over all texts

    def metrics(self) -> dict[str, float]:
        """For a report: keys end in units."""
        return {
            "sqnr_db": self.sqnr_db,
            "min_window_sqnr_db": self.min_window_sqnr_db,
            "centred_sqnr_db": self.centred_sqnr_db,
            "mean_kl_nats": self.mean_kl_nats,
            "top1_ratio": self.top1_ratio,
            "float_ppl": self.float_ppl,
            "ppl": self.ppl,
            "ppl_ratio": self.ppl / self.float_ppl,
        }


def compare(spec: GraphSpec, exact: Outputs, got: Outputs) -> Comparison:
    """Two graphs' outputs for the same texts of as many tokens as the largest graph takes."""
    indices = range(len(exact.texts))
    left = np.stack([exact.get(index, "logits")[0] for index in indices])
    right = np.stack([got.get(index, "logits")[0] for index in indices])
    targets = np.array([text[1:] for text in exact.texts])
    cache = [tensor.name for tensor in spec.outputs(spec.ars[0]) if tensor.name != "logits"]
    return Comparison(
        sqnr_db=sqnr_db(left, right),
        min_window_sqnr_db=min(sqnr_db(left[index], right[index]) for index in indices),
        centred_sqnr_db=centred_sqnr_db(left, right),
        mean_kl_nats=mean_kl(left, right),
        top1_ratio=top1_agreement(left, right),
        float_ppl=perplexity(left[:, :-1], targets),
        ppl=perplexity(right[:, :-1], targets),
        cache_sqnr_db={name: _sqnr_over(name, exact, got) for name in cache},
    )


def _sqnr_over(name: str, exact: Outputs, got: Outputs) -> float:
    indices = range(len(exact.texts))
    return sqnr_db(*(np.stack([outputs.get(index, name) for index in indices]) for outputs in (exact, got)))
