"""The head of a GGUF file: its metadata without long lists, and the place of its tensors. Reads no weights.

The worker has a reader of its own, which checks everything that computing relies on; this one serves planning, and
needs no package for the numbers of types.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_common.plan.config import UnreadableModel

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# Longer lists (vocabularies) are passed over.
_MOST_ITEMS = 256
_MOST_TENSORS = 1 << 20

# Types of tensors: name, weights in a block, bytes of a block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHead:
    """What a file says of itself."""

    metadata: Mapping[str, Any]
    # Dims, outermost first, and bytes, by name.
    dims: Mapping[str, tuple[int, ...]]
    num_bytes: Mapping[str, int]
    # Names of the tensors' types, that with most bytes first.
    kinds: tuple[str, ...]


def read_gguf_head(path: Path) -> GgufHead:
    """Read the head of a file; raises UnreadableModel."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data), path)
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"{path} cannot be read as a GGUF file: {error}") from error
    except struct.error as error:
        raise UnreadableModel(f"{path} is truncated or corrupt") from error


class _Cursor:
    """Reads little-endian values in order; struct.error beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def skip(self, num_bytes: int) -> None:
        if self._at + num_bytes > len(self._data):
            raise struct.error("beyond the end")
        self._at += num_bytes

    def text(self) -> str:
        start = self._at + 8
        self.skip(8 + self.scalar_at(self._at))
        return self._data[start : self._at].decode("utf-8", "replace")

    def scalar_at(self, offset: int) -> int:
        return struct.unpack_from("<Q", self._data, offset)[0]


def _parse(cursor: _Cursor, path: Path) -> GgufHead:
    if cursor.scalar("<4s") != b"GGUF" or cursor.scalar("<I") not in (2, 3):
        raise UnreadableModel(f"{path} is not a GGUF file of version 2 or 3")
    num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
    if num_tensors > _MOST_TENSORS:
        raise UnreadableModel(f"{path} is corrupt: it announces {num_tensors} tensors")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        value = _value(cursor, cursor.scalar("<I"), path)
        if value is not None:
            metadata[key] = value
    dims: dict[str, tuple[int, ...]] = {}
    num_bytes: dict[str, int] = {}
    by_kind: Counter[str] = Counter()
    for _ in range(num_tensors):
        name = cursor.text()
        dims[name] = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))[::-1]
        number = cursor.scalar("<I")
        cursor.skip(8)
        if number not in TENSOR_TYPES:
            raise UnreadableModel(f"{path}: the tensor {name} has a type, {number}, of unknown size")
        kind, block, block_bytes = TENSOR_TYPES[number]
        size = 1
        for dim in dims[name]:
            size *= dim
        num_bytes[name] = size // block * block_bytes
        by_kind[kind] += num_bytes[name]
    kinds = tuple(kind for kind, _ in by_kind.most_common())
    return GgufHead(metadata=metadata, dims=dims, num_bytes=num_bytes, kinds=kinds)


def _value(cursor: _Cursor, kind: int, path: Path) -> Any:
    """A scalar, a text or a short list of either; None for what was passed over."""
    if kind == _STRING:
        return cursor.text()
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    if kind != _ARRAY:
        raise UnreadableModel(f"{path} is corrupt: a value has the unknown type {kind}")
    item, length = cursor.scalar("<I"), cursor.scalar("<Q")
    if item == _ARRAY:
        # No model has any, and each would be a call deeper.
        raise UnreadableModel(f"{path} is corrupt: it has an array of arrays")
    if item in _SCALARS and length > _MOST_ITEMS:
        cursor.skip(length * struct.calcsize(_SCALARS[item]))
        return None
    values = [_value(cursor, item, path) for _ in range(min(length, _MOST_ITEMS))]
    for _ in range(length - len(values)):
        _value(cursor, item, path)
    return values if len(values) == length else None
