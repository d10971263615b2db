"""The weights of graphs that were rewritten, in a file of their own: some transposed, the rest as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from octavo_edge.graph.weights import WeightsWriter, point_at

__all__ = ["RewrittenWeights"]

_INLINE_BYTES = 1024  # smaller tensors stay in the graph's own file


class RewrittenWeights:
    """Where the external data of rewritten graphs goes."""

    def __init__(self, folder: Path, weights: WeightsWriter) -> None:
        """``folder`` is where the data of the graphs is before they are rewritten."""
        self._folder, self._weights = folder, weights
        self._stored: set[str] = set()

    def values(self, tensor: TensorProto) -> NDArray[Any]:
        """What an initialiser holds, wherever it is."""
        return numpy_helper.to_array(tensor, str(self._folder))

    def transposed(self, tensor: TensorProto, name: str) -> TensorProto:
        """A convolution's initialiser [O, X, 1, 1] as [X, O] under another name."""
        values = self.values(tensor)
        result = numpy_helper.from_array(np.ascontiguousarray(values.reshape(values.shape[:2]).T), name)
        if len(result.raw_data) > _INLINE_BYTES:
            self._store(result)
        return result

    def take(self, model: ModelProto) -> None:
        """Store what the model's initialisers still have elsewhere, and let them point here."""
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL and tensor.name not in self._stored:
                tensor.CopyFrom(numpy_helper.from_array(self.values(tensor), tensor.name))
                self._store(tensor)
        self._stored.clear()

    def _store(self, tensor: TensorProto) -> None:
        point_at(tensor, self._weights.put(np.frombuffer(tensor.raw_data, np.uint8)))
        self._stored.add(tensor.name)
