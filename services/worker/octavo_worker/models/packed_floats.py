"""Weights in bfloat16, in the order that products of bfloat16 want: pairs of inputs, tiles of 16 outputs.

O outputs, I inputs. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_worker.kernels.bfloat16 import BFLOAT16, GROUP_BYTES
from octavo_worker.kernels.integer import GROUP, Format
from octavo_worker.kernels.vector import LANES
from octavo_worker.models.base import Floats
from octavo_worker.models.packed import Matrix, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorts:
    """A matrix in bfloat16, as bits."""

    bits_OI: NDArray[np.int16]

    @property
    def form(self) -> Format:
        """Its format."""
        return BFLOAT16

    def take(self, rows: NDArray[np.int64]) -> Shorts:
        """Some rows, in another order."""
        return Shorts(bits_OI=self.bits_OI[rows])

    def above(self, others: Sequence[Any]) -> Shorts:
        """One below another: these, and others of the same form."""
        return Shorts(bits_OI=np.concatenate([self.bits_OI, *(other.bits_OI for other in others)]))

    def values(self) -> Floats:
        """What the bits stand for, in float32 [O, I]."""
        return torch.from_numpy(self.bits_OI).view(torch.bfloat16).float().numpy()

    def packed(self) -> Matrix:
        """Laid out for `float_matmul`: [tile, group, pair of inputs, output, 2]."""
        num_outputs, num_inputs = self.bits_OI.shape
        assert num_inputs % GROUP == 0, "the caller has checked it"
        tiles = padded(self.bits_OI).reshape(-1, LANES, num_inputs // GROUP, GROUP // 2, 2)
        data = np.ascontiguousarray(tiles.transpose(0, 2, 3, 1, 4)).view(np.uint8).reshape(-1)
        assert data.nbytes == len(tiles) * (num_inputs // GROUP) * GROUP_BYTES
        return Matrix(form=BFLOAT16, data=data, num_outputs=num_outputs, num_inputs=num_inputs)

    def __len__(self) -> int:
        return len(self.bits_OI)


def round_to_shorts(weight_OI: Floats) -> Shorts:
    """To the nearest bfloat16, ties to even."""
    return Shorts(bits_OI=torch.from_numpy(weight_OI).bfloat16().view(torch.int16).numpy())
