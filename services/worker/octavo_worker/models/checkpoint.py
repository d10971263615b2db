"""Where weights come from, whatever the file format: named tensors under Hugging Face's names, read as float32.

Knows nothing of files; readers implement Checkpoint, families ask `require` for what they need and `read` it in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from octavo_worker.models.base import InvalidModel

Shape = tuple[int, ...]


class StoredBlocks(NamedTuple):
    """A matrix in GGUF's blocks."""

    # GGUF's name of the type, such as Q4_1.
    kind: str
    # uint8 [outputs, blocks of a row, bytes of a block]
    blocks_OGB: np.ndarray


class Checkpoint(AbstractContextManager["Checkpoint", None], Protocol):
    """Open weights. Names, layouts and the order of rows are Hugging Face's, whatever the file does."""

    @property
    def where(self) -> str:
        """The file or directory, as error messages name it."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor's shape."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Write a tensor's values into ``out`` (float32, contiguous, of the tensor's shape)."""
        ...

    def read_blocks(self, name: str) -> StoredBlocks | None:
        """A quantised matrix as it is stored, rows in the same order; None for a tensor of floats."""
        ...


def require(checkpoint: Checkpoint, wanted: Mapping[str, Shape], *, ignored: tuple[str, ...]) -> None:
    """Raise InvalidModel unless the checkpoint has exactly these tensors; ends of names in ``ignored`` do not count."""
    shapes = checkpoint.shapes
    for name, shape in wanted.items():
        if name not in shapes:
            raise InvalidModel(f"{checkpoint.where}: the tensor {name} is missing")
        if shapes[name] != shape:
            raise InvalidModel(
                f"{checkpoint.where}: the tensor {name} has the shape {list(shapes[name])}, "
                f"and the configuration asks for {list(shape)}"
            )
    for name in shapes:
        if name not in wanted and not name.endswith(ignored):
            raise InvalidModel(
                f"{checkpoint.where}: the tensor {name} has no place in this architecture",
                hint="the file may be of a newer model family, or its configuration is not its own",
            )


def read_rows(checkpoint: Checkpoint, names: list[str], shape: Shape) -> Tensor:
    """Read tensors one below another into one float32 tensor of the given shape; raises InvalidModel on NaN or inf."""
    out = torch.empty(shape, dtype=torch.float32)
    row = 0
    for name in names:
        rows = checkpoint.shapes[name][0]
        part = out[row : row + rows]
        checkpoint.read_into(name, part)
        # NaN wins in both ends, so one pass without a mask of the same size tells.
        low, high = torch.aminmax(part)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise InvalidModel(f"{checkpoint.where}: the tensor {name} has values that are not finite")
        row += rows
    if row != shape[0]:
        raise InvalidModel(f"{checkpoint.where}: {', '.join(names)} have {row} rows together, not {shape[0]}")
    return out
