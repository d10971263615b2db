"""The embedding as a look-up in a mapped file: rows of integers become rows of real numbers. Runs on the host.

Shapes: A tokens, V vocabulary, H hidden size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import BundleTensor, TablePlace

__all__ = ["EmbeddingTable", "on_grid"]


class EmbeddingTable:
    """The rows of all tokens; the file stays mapped."""

    def __init__(self, folder: Path, place: TablePlace) -> None:
        self._place = place
        num_rows, width = place.shape
        self._is_packed = place.dtype == "int4"
        stored = np.dtype(np.uint8 if self._is_packed else place.dtype)
        columns = (width + 1) // 2 if self._is_packed else width
        file = str(folder / place.file)
        self._rows_VH = np.memmap(file, stored, "r", offset=place.offset, shape=(num_rows, columns))
        self._scales: NDArray[np.float32] | None = None
        if place.scales_file is not None:
            path = str(folder / place.scales_file)
            self._scales = np.memmap(path, np.float32, "r", offset=place.scales_offset, shape=(num_rows,))

    def rows(self, ids_A: NDArray[np.integer]) -> NDArray[np.float32]:
        """`[A, H]`."""
        stored = np.asarray(self._rows_VH[ids_A])
        integers = _unpacked(stored, self._place.shape[1]) if self._is_packed else stored
        values = integers.astype(np.float32)
        if self._place.zero_point:
            values -= np.float32(self._place.zero_point)
        if self._scales is not None:
            values *= np.asarray(self._scales[ids_A])[:, None]
        elif self._place.scale is not None:
            values *= np.float32(self._place.scale)
        return values


def on_grid(values: NDArray[np.float32], tensor: BundleTensor) -> NDArray[np.float32]:
    """The values as a tensor's encoding has them; unchanged where it has none."""
    if tensor.scale is None or tensor.zero_point is None or tensor.quantised_dtype is None:
        return values
    scale, limits = np.float32(tensor.scale), np.iinfo(tensor.quantised_dtype)
    integers = np.rint(values / scale) + np.float32(tensor.zero_point)
    return (np.clip(integers, limits.min, limits.max) - np.float32(tensor.zero_point)) * scale


def _unpacked(bytes_AC: NDArray[Any], width: int) -> NDArray[np.int8]:
    """Two numbers of 4 bits from each byte, low half first."""
    pairs = np.stack((bytes_AC & 0xF, bytes_AC >> 4), axis=-1).reshape(len(bytes_AC), -1)[:, :width]
    return ((pairs.astype(np.int8) ^ 8) - 8).astype(np.int8)
