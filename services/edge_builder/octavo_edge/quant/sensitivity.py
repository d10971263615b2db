"""What each weight, or each layer's weights, costs where it counts: at the logits, when it alone is rounded.

The graph runs once, piece by piece. Each candidate is a variant of the run that leaves the exact one at the piece with
its weights and goes on beside it, so what lies before a layer is never run for that layer. Memory holds one piece's
weights and, by candidate and batch, what crosses a border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.graph.metrics import mean_kl
from octavo_edge.quant.grid import Floats
from octavo_edge.quant.segments import Arrays, Segment, SegmentRun, cut, last_reads, starts_by_bytes
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import SensitivityMetric

_LOGITS = "logits"
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Weights that change precision together (a layer's, or one alone), rounded to the lower one."""

    name: str
    weights: Mapping[str, Callable[[], Floats]]  # made when they are needed: all of a model's would be its size again
    extra_bytes: int  # what the higher precision costs


def sensitivities(
    graph: Topology,
    candidates: Sequence[Candidate],
    batches: Sequence[Arrays],
    on_piece: Callable[[int, int], None],
    *,
    metric: SensitivityMetric = SensitivityMetric.KL,
    piece_bytes: int = _PIECE_BYTES,
) -> dict[str, float]:
    """By candidate the mean over batches of its loss at the logits: KL in nats, or noise to signal."""
    run = _Run(graph, candidates, batches, metric)
    segments = cut(graph, starts_by_bytes(graph, piece_bytes))
    last = last_reads(segments)
    for index, segment in enumerate(segments):
        run.piece(segment, needed={name for name, reader in last.items() if reader > index})
        on_piece(index + 1, len(segments))
    # Weights that nothing reads cost nothing.
    return {candidate.name: run.losses.get(candidate.name, 0.0) for candidate in candidates}


def most_worth(
    losses: Mapping[str, float], candidates: Sequence[Candidate], *, budget_bytes: int, max_count: int | None = None
) -> list[str]:
    """Names of the candidates that get the higher precision: the greatest loss a byte first, as long as all fit.

    Losses of single candidates add up closely enough for that: second-order terms between small errors are smaller.
    Of equal ones the earlier in the graph is first.
    """
    order = sorted(candidates, key=lambda c: losses[c.name] / max(c.extra_bytes, 1), reverse=True)
    chosen: list[str] = []
    for candidate in order:
        if max_count is not None and len(chosen) == max_count:
            break
        if candidate.extra_bytes <= budget_bytes:
            budget_bytes -= candidate.extra_bytes
            chosen.append(candidate.name)
    return chosen


_Live = list[dict[str, NDArray[Any]]]  # by batch, what later pieces read


class _Run:
    """The exact run, and beside it one variant of every candidate whose weights have been met."""

    def __init__(
        self, graph: Topology, candidates: Sequence[Candidate], batches: Sequence[Arrays], metric: SensitivityMetric
    ) -> None:
        self._graph, self._candidates, self._batches, self._metric = graph, candidates, batches, metric
        self._exact: _Live = [{} for _ in batches]
        self._variants: dict[str, _Live] = {}
        self._logits: list[Floats] = []
        self.losses: dict[str, float] = {}

    def piece(self, segment: Segment, *, needed: set[str]) -> None:
        """Run one piece exactly and in all variants; keeps what later pieces need."""
        here = {candidate.name: candidate for candidate in self._candidates if self._reads(segment, candidate)}
        for name in here:
            self._variants.setdefault(name, [dict(live) for live in self._exact])
        session = SegmentRun(self._graph, segment, override=lambda _: None)
        self._advance(session, segment, self._exact, needed, None)
        for name, live in self._variants.items():
            if name not in here:
                self._advance(session, segment, live, needed, name)
        del session
        for name, candidate in here.items():
            rounded = SegmentRun(self._graph, segment, override=_rounded(candidate))
            self._advance(rounded, segment, self._variants[name], needed, name)

    def _reads(self, segment: Segment, candidate: Candidate) -> bool:
        readers = (index for name in candidate.weights for index in self._graph.readers.get(name, ()))
        return any(segment.start <= index < segment.stop for index in readers)

    def _advance(
        self, session: SegmentRun, segment: Segment, lives: _Live, needed: set[str], variant: str | None
    ) -> None:
        for number, (live, batch) in enumerate(zip(lives, self._batches, strict=True)):
            outputs = session.run({name: live[name] if name in live else batch[name] for name in segment.reads})
            if _LOGITS in outputs and variant is None:
                self._logits.append(outputs[_LOGITS])
            elif _LOGITS in outputs and variant is not None:
                loss = _loss(self._metric, self._logits[number], outputs[_LOGITS]) / len(self._batches)
                self.losses[variant] = self.losses.get(variant, 0.0) + loss
            live.update((name, outputs[name]) for name in segment.gives)
            for name in live.keys() - needed:
                del live[name]


def _rounded(candidate: Candidate) -> Callable[[str], Floats | None]:
    def values(name: str) -> Floats | None:
        make = candidate.weights.get(name)
        return None if make is None else make()

    return values


def _loss(metric: SensitivityMetric, exact: Floats, got: Floats) -> float:
    match metric:
        case SensitivityMetric.KL:
            return mean_kl(exact, got)
        case SensitivityMetric.SQNR:
            # Noise to signal, which adds up; decibels do not.
            signal = float(np.sum(np.square(exact, dtype=np.float64)))
            noise = float(np.sum(np.square(exact - got, dtype=np.float64)))
            return noise / signal if signal else math.inf
