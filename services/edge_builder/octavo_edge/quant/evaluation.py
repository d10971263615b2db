"""How much worse a quantised graph predicts real text than the float one. Knows no quantiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.graph.feeds import Decoding, RunGraph
from octavo_edge.graph.metrics import centred_sqnr_db, mean_kl, mean_nll, perplexity, sqnr_db, top1_agreement
from octavo_edge.graph.spec import GraphSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the float graph says of texts: outputs of each, in files, and the texts' perplexity."""

    folder: Path
    tokens: tuple[tuple[int, ...], ...]

    def logits(self, index: int) -> NDArray[Any]:
        """[T, V] of one text, mapped."""
        return np.load(self.folder / f"{index}.logits.npy", mmap_mode="r")

    def cache(self, index: int) -> dict[str, NDArray[Any]]:
        """New keys and values of one text by output name."""
        with np.load(self.folder / f"{index}.cache.npz") as file:
            return {name: file[name] for name in file.files}


def refer(
    spec: GraphSpec, run: RunGraph, texts: Sequence[Sequence[int]], folder: Path, on_text: Callable[[int], None]
) -> Reference:
    """Run the float graph on texts of at most the largest AR's tokens, each by itself, and keep what it says."""
    folder.mkdir(parents=True)
    for index, text in enumerate(texts):
        (call,) = Decoding(spec, run).calls(text, ars=spec.ars[:1])
        np.save(folder / f"{index}.logits.npy", call.logits)
        cache = {name: values for name, values in call.outputs.items() if name != "logits"}
        np.savez(folder / f"{index}.cache.npz", allow_pickle=False, **cache)
        on_text(index + 1)
    return Reference(folder=folder, tokens=tuple(tuple(text) for text in texts))


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


def compare(spec: GraphSpec, run: RunGraph, reference: Reference, on_text: Callable[[int], None]) -> Comparison:
    """Run the quantised graph on the reference's texts."""
    exact: list[NDArray[Any]] = []
    got: list[NDArray[Any]] = []
    noise: dict[str, list[float]] = {}
    for index, text in enumerate(reference.tokens):
        (call,) = Decoding(spec, run).calls(text, ars=spec.ars[:1])
        exact.append(np.asarray(reference.logits(index)))
        got.append(call.logits.copy())
        for name, values in reference.cache(index).items():
            error = values.astype(np.float64) - call.outputs[name]
            sums = noise.setdefault(name, [0.0, 0.0])
            sums[0] += float(np.sum(values.astype(np.float64) ** 2))
            sums[1] += float(np.sum(error**2))
        on_text(index + 1)
    every, others = np.stack(exact), np.stack(got)
    targets = np.array([text[1:] for text in reference.tokens])
    return Comparison(
        sqnr_db=sqnr_db(every, others),
        min_window_sqnr_db=min(sqnr_db(left, right) for left, right in zip(exact, got, strict=True)),
        centred_sqnr_db=centred_sqnr_db(every, others),
        mean_kl_nats=mean_kl(every, others),
        top1_ratio=top1_agreement(every, others),
        float_ppl=perplexity(every[:, :-1], targets),
        ppl=float(np.exp(mean_nll(others[:, :-1], targets))),
        cache_sqnr_db={name: _decibels(*sums) for name, sums in noise.items()},
    )


def _decibels(signal: float, noise: float) -> float:
    return float(10 * np.log10(signal / noise)) if noise and signal else float("inf")
