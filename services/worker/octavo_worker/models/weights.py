"""Safetensors of a Hugging Face directory as a Checkpoint: one file, or shards with their index.

Headers are checked against the files' sizes before anything is read; tensors are then read straight into their place
with plain reads, so that no mapped page stays in the process. Knows nothing of architectures.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from octavo_worker.models.base import InvalidModel
from octavo_worker.models.checkpoint import Shape, StoredBlocks

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_MAX_HEADER = 100 << 20
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Elements converted at once: bounds the second copy of a tensor that is not float32 already.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    file: Path
    dtype: torch.dtype
    shape: Shape
    offset: int
    num_bytes: int


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, sorted by name; raises InvalidModel when there are none."""
    index = directory / INDEX
    if index.is_file():
        return sorted({directory / name for name in _read_index(index).values()})
    single = directory / SINGLE
    if not single.is_file():
        raise InvalidModel(f"{directory} has neither {SINGLE} nor {INDEX}", hint="weights must be safetensors or GGUF")
    return [single]


class SafetensorsCheckpoint:
    """Open safetensors files."""

    def __init__(self, directory: Path) -> None:
        """Read and check all headers; raises InvalidModel."""
        self._directory = directory
        self._entries: dict[str, _Entry] = {}
        self._open: dict[Path, BinaryIO] = {}
        index = _read_index(directory / INDEX) if (directory / INDEX).is_file() else {}
        for file in weight_files(directory):
            for name, entry in _read_header(file).items():
                if name in self._entries:
                    raise InvalidModel(f"{file}: the tensor {name} is stored twice")
                self._entries[name] = entry
        for name, file in index.items():
            if name not in self._entries:
                raise InvalidModel(f"{directory / file}: the tensor {name} is missing, which {INDEX} promises")

    @property
    def where(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor's shape."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        """Write a tensor's values into ``out``, float32 and contiguous."""
        entry = self._entries[name]
        file = self._open.get(entry.file)
        if file is None:
            file = self._open[entry.file] = entry.file.open("rb")
        file.seek(entry.offset)
        flat = out.view(-1)
        if entry.dtype == torch.float32:
            self._fill(file, flat, name)
            return
        for start in range(0, flat.numel(), _CHUNK):
            part = torch.empty(min(_CHUNK, flat.numel() - start), dtype=entry.dtype)
            self._fill(file, part, name)
            flat[start : start + part.numel()].copy_(part)

    def _fill(self, file: BinaryIO, tensor: Tensor, name: str) -> None:
        if file.readinto(memoryview(tensor.view(torch.uint8).numpy())) != tensor.nbytes:  # type: ignore[attr-defined]
            raise InvalidModel(f"{file.name}: the file ends inside the tensor {name}")

    def read_blocks(self, name: str) -> StoredBlocks | None:
        """Never any: these files hold floats."""
        del name
        return None

    def __enter__(self) -> SafetensorsCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def _read_index(index: Path) -> dict[str, str]:
    """File name of each tensor. Names with a path are refused: an index must not reach outside its directory."""
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(tensor): str(file) for tensor, file in names.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModel(f"{index} cannot be read: {error!r}") from error
    for file in files.values():
        if Path(file).name != file:
            raise InvalidModel(f"{index} names the file {file!r}, which is not in its directory")
        if not (index.parent / file).is_file():
            raise InvalidModel(f"{index} names the file {file}, which is missing")
    return files


def _read_header(file: Path) -> dict[str, _Entry]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise InvalidModel(f"{file} is truncated or no safetensors file: its header does not fit into it")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise InvalidModel(f"{file} cannot be read: {os.strerror(error.errno or 0)}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{file} is corrupt: its header is not JSON") from error
    if not isinstance(header, dict):
        raise InvalidModel(f"{file} is corrupt: its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _entry(file, name, value, 8 + length, size) for name, value in header.items()}


def _entry(file: Path, name: str, value: Any, data: int, size: int) -> _Entry:
    try:
        shape = tuple(value["shape"])
        start, end = value["data_offsets"]
        kind = str(value["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"{file} is corrupt: the entry of the tensor {name} is damaged") from error
    numbers = (*shape, start, end)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise InvalidModel(f"{file} is corrupt: the tensor {name} has the sizes {list(numbers)}")
    if kind not in _DTYPES:
        raise InvalidModel(
            f"{file}: the tensor {name} has the type {kind}, which is not supported", hint=f"only {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[kind]
    if end - start != math.prod(shape) * dtype.itemsize:
        raise InvalidModel(f"{file} is corrupt: the tensor {name} has {end - start} bytes for the shape {list(shape)}")
    if data + end > size:
        raise InvalidModel(f"{file} is truncated: the tensor {name} ends at byte {data + end}, the file at {size}")
    return _Entry(file=file, dtype=dtype, shape=shape, offset=data + start, num_bytes=end - start)
