"""How much worse a quantised graph predicts real text than the float one. Knows no quantiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.spec import GraphSpec
from octavo_edge.graph.metrics import decibels, energies, mean_kl, mean_nll, top1_agreement

_LOGITS = "logits"


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
    """Two graphs' outputs for the same texts of as many tokens as the largest graph takes; one text in memory."""
    texts = [_compare_text(exact, got, index) for index in range(len(exact.texts))]
    cache = [tensor.name for tensor in spec.outputs(spec.ars[0]) if tensor.name != _LOGITS]
    return Comparison(
        sqnr_db=_joined([text.plain for text in texts]),
        min_window_sqnr_db=min(decibels(*text.plain) for text in texts),
        centred_sqnr_db=_joined([text.centred for text in texts]),
        mean_kl_nats=_mean([text.kl for text in texts]),
        top1_ratio=_mean([text.top1 for text in texts]),
        float_ppl=_exp(_mean([text.float_nll for text in texts])),
        ppl=_exp(_mean([text.nll for text in texts])),
        cache_sqnr_db={name: _sqnr_over(name, exact, got) for name in cache},
    )


Energies = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """What one text's logits say."""

    plain: Energies
    centred: Energies
    kl: float
    top1: float
    float_nll: float
    nll: float


def _compare_text(exact: Outputs, got: Outputs, index: int) -> _Text:
    left, right = (outputs.get(index, _LOGITS)[0] for outputs in (exact, got))
    targets = np.array(exact.texts[index][1:])
    return _Text(
        plain=energies(left, right),
        centred=energies(left, right, centred=True),
        kl=mean_kl(left, right),
        top1=top1_agreement(left, right),
        float_nll=mean_nll(left[:-1], targets),
        nll=mean_nll(right[:-1], targets),
    )


def _sqnr_over(name: str, exact: Outputs, got: Outputs) -> float:
    return _joined([energies(exact.get(index, name), got.get(index, name)) for index in range(len(exact.texts))])


def _joined(parts: Sequence[Energies]) -> float:
    return decibels(sum(signal for signal, _ in parts), sum(noise for _, noise in parts))


def _mean(values: Sequence[float]) -> float:
    # Texts have as many tokens each.
    return sum(values) / len(values)


def _exp(nll: float) -> float:
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
