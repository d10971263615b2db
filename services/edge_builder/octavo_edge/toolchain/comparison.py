"""Compares what a tool-chain computes with ONNX Runtime on the same graph, and with the golden run of the QDQ graph.

The first tells whether the tool-chain is right, the second what the target's own precision makes of the model: where
activations stay in floating point it differs from the golden run by what rounding them costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from octavo_device.feeds import Arrays
from octavo_edge.graph.manifest import PartGraph
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.parts.vectors import read_vectors

__all__ = ["Comparison", "Run"]

Run = Callable[[Arrays], Mapping[str, NDArray[Any]]]


@dataclass(slots=True)
class Comparison:
    """Losses in decibels by graph and output, the worst of all calls. Filled graph by graph."""

    golden: dict[str, float] = field(default_factory=dict)
    same_graph: dict[str, float] = field(default_factory=dict)

    def add(self, folder: Path, graph: PartGraph, run: Run, reference: Run | None = None) -> None:
        """Run the vectors of one graph; `reference` is the same graph in another executor."""
        for inputs, expected in read_vectors(folder, graph):
            got = run(inputs)
            _keep_worst(self.golden, graph, expected, got)
            if reference is not None:
                _keep_worst(self.same_graph, graph, reference(inputs), got)

    def worst(self, losses: Mapping[str, float]) -> tuple[str, float]:
        """The output that lost most, and its decibels."""
        return min(losses.items(), key=lambda item: item[1])

    def metrics(self) -> dict[str, float]:
        """For the report."""
        found = {"golden_worst_sqnr_db": self.worst(self.golden)[1]} if self.golden else {}
        logits = [loss for name, loss in self.golden.items() if name.endswith(" logits")]
        if logits:
            found["golden_logits_sqnr_db"] = min(logits)
        if self.same_graph:
            found["same_graph_worst_sqnr_db"] = self.worst(self.same_graph)[1]
        return found


def _keep_worst(
    losses: dict[str, float],
    graph: PartGraph,
    expected: Mapping[str, NDArray[Any]],
    got: Mapping[str, NDArray[Any]],
) -> None:
    for tensor in graph.outputs:
        name = f"{Path(graph.file).stem} {tensor.name}"
        losses[name] = min(losses.get(name, math.inf), sqnr_db(expected[tensor.name], got[tensor.name]))
