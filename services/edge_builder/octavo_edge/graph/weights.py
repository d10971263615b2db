"""One file for the weights of several graphs: bytes that are there already are not stored again.

What a device can share between graphs it shares by content, so content is what decides here; names do not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from octavo_edge.graph.summary import tensor_bytes

__all__ = ["WEIGHTS_FILE", "Place", "WeightsWriter", "point_at", "values_of"]

WEIGHTS_FILE = "weights.data"
_ALIGNMENT = 4096  # a page: readers map the file


class Place(NamedTuple):
    """Where in the file a tensor's bytes are."""

    offset: int
    num_bytes: int


class WeightsWriter:
    """Writes a new file; use as a context."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WEIGHTS_FILE
        self._file: BinaryIO | None = None
        self._places: dict[bytes, Place] = {}
        self._end = 0
        self.shared_bytes = 0  # what was asked to be stored and was there

    def __enter__(self) -> WeightsWriter:
        self._file = self._path.open("xb")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._end

    def put(self, values: NDArray[Any]) -> Place:
        """Store an array's bytes in its own order of axes, or find them."""
        assert self._file is not None, "the file is open inside the context only"
        view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(view).digest()
        if digest in self._places:
            self.shared_bytes += len(view)
            return self._places[digest]
        offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._file.write(bytes(offset - self._end))
        self._file.write(view)
        # Others map the file while more is appended.
        self._file.flush()
        place = self._places[digest] = Place(offset, len(view))
        self._end = offset + len(view)
        return place


def point_at(tensor: TensorProto, place: Place) -> None:
    """Let an initialiser have its values in the file instead of in the graph."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", WEIGHTS_FILE), ("offset", str(place.offset)), ("length", str(place.num_bytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def values_of(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """An initialiser's values, wherever they are; `folder` is the graph's.

    Read here, since onnx refuses files that have a second name, as those of artifacts may.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    whole = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    start = int(entries.get("offset", 0))
    whole.raw_data = np.fromfile(folder / entries["location"], np.uint8, tensor_bytes(tensor), offset=start).tobytes()
    return numpy_helper.to_array(whole)
