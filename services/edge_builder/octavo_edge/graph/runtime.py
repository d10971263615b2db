"""Running ONNX files with ONNX Runtime on the CPU: the reference that every other executor is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from octavo_device.spec import GraphSpec, graph_file, read_spec

__all__ = ["OrtGraph", "OrtModel"]

_ERRORS_ONLY = 3  # warnings of ONNX Runtime are about its own optimiser


class OrtGraph:
    """One file as a session. The external data stays mapped, not copied, where the optimiser leaves weights alone."""

    def __init__(self, path: Path, *, num_threads: int = 0, optimise: bool = True) -> None:
        """`num_threads` 0 takes all cores. Without `optimise` the nodes run as they stand in the file."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.log_severity_level = _ERRORS_ONLY
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs: tuple[str, ...] = tuple(value.name for value in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(value.name for value in self._session.get_outputs())

    def run(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """All outputs, or those named."""
        names = list(self.outputs if outputs is None else outputs)
        values = self._session.run(names, dict(feeds))
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


class OrtModel:
    """All graphs of an artifact's folder; a session is made when its graph is first run. Fits `RunGraph`."""

    def __init__(self, folder: Path, *, num_threads: int = 0, optimise: bool = True) -> None:
        self.spec: GraphSpec = read_spec(folder)
        self._folder, self._num_threads, self._optimise = folder, num_threads, optimise
        self._graphs: dict[int, OrtGraph] = {}

    def __call__(self, ar: int, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph for `ar` new tokens."""
        return self.graph(ar).run(feeds)

    def graph(self, ar: int) -> OrtGraph:
        """The session of the graph for `ar` new tokens."""
        if ar not in self._graphs:
            path = self._folder / graph_file(ar)
            self._graphs[ar] = OrtGraph(path, num_threads=self._num_threads, optimise=self._optimise)
        return self._graphs[ar]

    def release(self, ar: int) -> None:
        """Give back the memory of one session."""
        self._graphs.pop(ar, None)
