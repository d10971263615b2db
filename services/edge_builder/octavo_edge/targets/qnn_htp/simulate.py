"""Runs lowered graphs on the HTP's simulator, and compares them with the golden run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.targets.qnn_htp.process import run_child

__all__ = ["Simulated", "simulate"]

_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One graph on the simulator."""

    outputs: tuple[Mapping[str, NDArray[Any]], ...]  # of each call
    compile_seconds: float
    run_seconds: tuple[float, ...]
    peak_rss_bytes: int

    def losses(self, expected: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, float]:
        """Decibels of each output against a reference, the worst of all calls."""
        return {
            name: min(sqnr_db(values[name], got[name]) for values, got in zip(expected, self.outputs, strict=True))
            for name in expected[0]
        }


def simulate(
    model: Path, calls: Sequence[Mapping[str, NDArray[Any]]], *, options: Mapping[str, str], scratch: Path
) -> Simulated:
    """Compile one graph for the simulator and run it; ``scratch`` is an empty directory.

    Raises:
        ToolchainFailed: The tool-chain refused or crashed.
    """
    files = []
    for index, feeds in enumerate(calls):
        arrays: dict[str, Any] = dict(feeds)
        np.savez(scratch / f"in{index}.npz", **arrays)
        files.append({"inputs": str(scratch / f"in{index}.npz"), "outputs": str(scratch / f"out{index}.npz")})
    graph = {"model": str(model), "calls": files}
    result = run_child(scratch, graphs=[graph], options=options, timeout_s=_TIMEOUT_S)
    outputs = []
    for file in files:
        with np.load(file["outputs"]) as made:
            outputs.append({name: made[name] for name in made.files})
    done = result.graphs[0]
    return Simulated(
        outputs=tuple(outputs),
        compile_seconds=done.compile_seconds,
        run_seconds=done.run_seconds,
        peak_rss_bytes=result.peak_rss_bytes,
    )
