"""The GGUF container: metadata and the table of tensors. Knows nothing of architectures or of what a type's bits mean.

Every count and length is checked against the file's size and a bound of its own before it is believed, so a truncated,
corrupt or sparse file ends in InvalidModel at once, and never in an absurd allocation. Type numbers and block sizes are
the `gguf` package's; the parsing is ours, because its reader takes seconds for a vocabulary and trusts the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from octavo_worker.models.base import InvalidModel
from octavo_worker.models.checkpoint import Shape

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_NAME = 1 << 16
# Far beyond any real file: a sparse one costs its maker nothing, however large it is.
_MAX_THINGS = 1 << 16
_MAX_ITEMS = 1 << 22
_MAX_TEXT = 1 << 24
_DEFAULT_ALIGNMENT = 32

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor's place in the file."""

    name: str
    kind: GGMLQuantizationType
    shape: Shape
    """Outermost dim first, as numpy and torch have it; the file has it the other way round."""
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """What a GGUF file says about itself."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    """Scalars, strings, and lists of either."""
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Parse the head of a file; raises InvalidModel."""
    try:
        with path.open("rb") as stream:
            return _parse(_Cursor(stream, path), path)
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error


class _Cursor:
    """Reads little-endian values in order; never beyond the file."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream = stream
        self.path = path
        self.size = path.stat().st_size
        self.position = 0

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def bytes(self, count: int, what: str) -> bytes:
        if count > self.remaining:
            raise InvalidModel(f"{self.path} is truncated or corrupt: {what} reaches beyond its {self.size} bytes")
        self.position += count
        return self._stream.read(count)

    def scalar(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form), what))[0]

    def count(self, what: str, *, least_bytes: int, limit: int = _MAX_THINGS) -> int:
        """A number of things that take at least so many bytes each."""
        value = self.scalar("<Q", what)
        if value > limit or value * least_bytes > self.remaining:
            raise InvalidModel(f"{self.path} is truncated or corrupt: it announces {value} of {what}")
        return value

    def text(self, what: str, limit: int = _MAX_TEXT) -> str:
        length = self.scalar("<Q", what)
        if length > limit:
            raise InvalidModel(f"{self.path} is corrupt: {what} has {length} bytes")
        data = self.bytes(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{self.path} is corrupt: {what} is not UTF-8") from error


def _parse(cursor: _Cursor, path: Path) -> GgufFile:
    if cursor.size < 24 or cursor.bytes(4, "the magic number") != MAGIC:
        raise InvalidModel(f"{path} is not a GGUF file")
    version = cursor.scalar("<I", "the version")
    if version not in _VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        what = "is big-endian" if big_endian else f"has the GGUF version {version}"
        raise InvalidModel(f"{path} {what}, which is not supported", hint="convert it with a recent llama.cpp")
    num_tensors = cursor.count("tensors", least_bytes=8 + 1 + 4 + 8 + 4 + 8)
    num_values = cursor.count("metadata values", least_bytes=8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text("a metadata key", _MAX_NAME)
        if key in metadata:
            raise InvalidModel(f"{path} is corrupt: the metadata key {key} is there twice")
        metadata[key] = _value(cursor, key, cursor.scalar("<I", f"the type of {key}"))
    heads = [_tensor_head(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise InvalidModel(f"{path} is corrupt: its alignment is {alignment!r}")
    data = -(-cursor.position // alignment) * alignment
    return GgufFile(path=path, version=version, metadata=metadata, tensors=_place(path, heads, data, cursor.size))


def _value(cursor: _Cursor, key: str, kind_number: int) -> Any:
    kind = _value_type(cursor, key, kind_number)
    if kind is not GGUFValueType.ARRAY:
        return _plain(cursor, key, kind)
    item = _value_type(cursor, key, cursor.scalar("<I", f"the item type of {key}"))
    if item is GGUFValueType.ARRAY:
        raise InvalidModel(f"{cursor.path}: {key} is an array of arrays, which is not supported")
    if item is GGUFValueType.STRING:
        what = f"an item of {key}"
        return [cursor.text(what) for _ in range(cursor.count(f"items of {key}", least_bytes=8, limit=_MAX_ITEMS))]
    width = struct.calcsize(_SCALARS[item])
    length = cursor.count(f"items of {key}", least_bytes=width, limit=_MAX_ITEMS)
    return list(struct.unpack(f"<{length}{_SCALARS[item][1]}", cursor.bytes(length * width, key)))


def _value_type(cursor: _Cursor, key: str, number: int) -> GGUFValueType:
    try:
        return GGUFValueType(number)
    except ValueError as error:
        raise InvalidModel(f"{cursor.path} is corrupt: {key} has the unknown value type {number}") from error


def _plain(cursor: _Cursor, key: str, kind: GGUFValueType) -> Any:
    return cursor.text(key) if kind is GGUFValueType.STRING else cursor.scalar(_SCALARS[kind], key)


def _tensor_head(cursor: _Cursor) -> GgufTensor:
    """A tensor's entry, with its offset still relative to the data."""
    name = cursor.text("a tensor's name", _MAX_NAME)
    num_dims = cursor.scalar("<I", f"the shape of {name}")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise InvalidModel(f"{cursor.path} is corrupt: the tensor {name} has {num_dims} dims")
    dims = [cursor.scalar("<Q", f"the shape of {name}") for _ in range(num_dims)]
    number = cursor.scalar("<I", f"the type of {name}")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise InvalidModel(f"{cursor.path}: the tensor {name} has the unknown type {number}") from error
    offset = cursor.scalar("<Q", f"the offset of {name}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in dims or dims[0] % block:
        raise InvalidModel(
            f"{cursor.path} is corrupt: the tensor {name} has the shape {dims[::-1]}, "
            f"whose rows do not divide into {kind.name} blocks of {block}"
        )
    num_bytes = math.prod(dims) // block * block_bytes
    return GgufTensor(name=name, kind=kind, shape=tuple(dims[::-1]), offset=offset, num_bytes=num_bytes)


def _place(path: Path, heads: list[GgufTensor], data: int, size: int) -> dict[str, GgufTensor]:
    """Absolute offsets; checks that tensors lie within the file, apart from each other, under names of their own."""
    placed: dict[str, GgufTensor] = {}
    end = data
    for head in sorted(heads, key=lambda head: head.offset):
        start = data + head.offset
        if start + head.num_bytes > size:
            raise InvalidModel(
                f"{path} is truncated: the tensor {head.name} ends at byte {start + head.num_bytes}, the file at {size}"
            )
        if start < end:
            raise InvalidModel(f"{path} is corrupt: the tensor {head.name} overlaps another")
        if head.name in placed:
            raise InvalidModel(f"{path} is corrupt: the tensor {head.name} is there twice")
        end = start + head.num_bytes
        placed[head.name] = GgufTensor(
            name=head.name, kind=head.kind, shape=head.shape, offset=start, num_bytes=head.num_bytes
        )
    return placed
