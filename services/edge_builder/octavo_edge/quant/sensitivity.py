"""Which weights lose most by fewer bits, and which of them get more bits for it.

What a weight costs is measured where it counts: the logits' KL divergence when it alone is rounded. Divergences of
single weights add up closely enough to rank them (second-order terms between layers are small for small errors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from octavo_edge.graph.metrics import mean_kl
from octavo_edge.quant.grid import Floats
from octavo_edge.quant.segments import Arrays
from octavo_edge.quant.topology import Topology

_ERRORS_ONLY = 3


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
    on_candidate: Callable[[int], None],
) -> dict[str, float]:
    """Mean KL in nats of the logits over all positions of all batches, by candidate. Runs the whole graph."""
    exact = _logits(graph, {}, batches)
    found: dict[str, float] = {}
    for index, candidate in enumerate(candidates):
        rounded = {name: make() for name, make in candidate.weights.items()}
        got = _logits(graph, rounded, batches)
        found[candidate.name] = float(np.mean([mean_kl(e, g) for e, g in zip(exact, got, strict=True)]))
        on_candidate(index + 1)
    return found


def most_worth(losses: Mapping[str, float], candidates: Sequence[Candidate], *, budget_bytes: int) -> list[str]:
    """Names of the candidates that get the higher precision: the greatest loss a byte first, as long as all fit."""
    order = sorted(candidates, key=lambda c: losses[c.name] / max(c.extra_bytes, 1), reverse=True)
    chosen: list[str] = []
    for candidate in order:
        if candidate.extra_bytes <= budget_bytes:
            budget_bytes -= candidate.extra_bytes
            chosen.append(candidate.name)
    return chosen


def _logits(graph: Topology, replaced: Mapping[str, Floats], batches: Sequence[Arrays]) -> list[Floats]:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    # The values must outlive the session, which reads them where they are.
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(w)) for name, w in replaced.items()}
    external = [name for name in values if graph.is_external(name)]
    options.add_external_initializers(external, [values[name] for name in external])
    for name in values.keys() - set(external):
        options.add_initializer(name, values[name])
    session = ort.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(session.run(["logits"], {name: batch[name] for name in graph.inputs})[0]) for batch in batches]
