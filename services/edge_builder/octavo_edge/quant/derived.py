"""The graphs for fewer tokens against the float graphs of the same size, behind a real past. Knows no quantiser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec, graph_file
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.quant.batches import BatchStore, next_inputs
from octavo_edge.quant.evaluation import Outputs
from octavo_edge.quant.segments import run_by_pieces
from octavo_edge.quant.topology import Topology

_NUM_CALLS = 4
_LOGITS = "logits"


def derived_sqnr_db(
    spec: GraphSpec,
    exact: Path,
    got: Path,
    reference: Outputs,
    scratch: Path,
    on_piece: Callable[[int, int], None],
    *,
    prefix: Prefix = NO_PREFIX,
) -> dict[int, float]:
    """By number of new tokens, all but the largest: the logits' ratio over one call a text, at most four.

    A call takes a text's last tokens; its past is the prefix, and what the largest float graph made of those before
    (``reference``).
    """
    found: dict[int, float] = {}
    for ar in spec.ars[1:]:
        num_before = spec.ars[0] - ar
        calls = BatchStore(scratch / f"derived-{ar}", spec, ar)
        cache = [tensor.name for tensor in spec.outputs(ar) if tensor.name != _LOGITS]
        for index, text in enumerate(reference.texts[:_NUM_CALLS]):
            past = {name: reference.get(index, name) for name in cache}
            calls.add(next_inputs(spec, past, num_before, text[num_before:], ar=ar, prefix=prefix))
        left, right = (_logits(folder / graph_file(ar), calls, on_piece) for folder in (exact, got))
        found[ar] = sqnr_db(left, right)
    return found


def _logits(path: Path, calls: BatchStore, on_piece: Callable[[int, int], None]) -> NDArray[Any]:
    found: dict[int, NDArray[Any]] = {}

    def sink(number: int, name: str, values: NDArray[Any]) -> None:
        if name == _LOGITS:
            found[number] = values

    run_by_pieces(Topology(path), calls, sink, on_piece)
    return np.stack([found[number] for number in range(len(calls))])
