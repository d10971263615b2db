"""Weights in the order that integer products want: groups of 32 or 64 with float16 scales, tiles of 16 outputs.

O outputs, I inputs, G groups of inputs. Reads what GGUF stores (Q8_0, Q4_0, Q4_1) without changing a number, and
quantises anything else to mixed groups of bytes. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_worker.kernels.integer import GROUP, MIXED_32, Q4_0, Q4_1, Q8_0, Format
from octavo_worker.kernels.vector import LANES
from octavo_worker.models.base import Floats

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]

# Tiles that are laid out at once: bounds what packing takes beside its result.
_TILES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """A matrix as integers with scales: w = d (q - zero), or d q + m."""

    form: Format
    ints_OI: Bytes
    deltas_OG: Halves
    # Only where the format has minima.
    minima_OG: Halves | None = None

    @property
    def grid_OG(self) -> Floats | None:
        """What the values of a group are multiples of, but for a constant; None where that is too fine to be of use."""
        return np.abs(self.deltas_OG.astype(np.float32)) if self.form.bits == 4 else None

    def take(self, rows: NDArray[np.int64]) -> Groups:
        """Some rows, in another order."""
        minima = None if self.minima_OG is None else self.minima_OG[rows]
        return Groups(form=self.form, ints_OI=self.ints_OI[rows], deltas_OG=self.deltas_OG[rows], minima_OG=minima)

    def above(self, others: Sequence[Any]) -> Groups:
        """One below another: these, and others of the same form."""
        parts = (self, *others)
        assert all(part.form == self.form for part in parts)
        minima = [part.minima_OG for part in parts if part.minima_OG is not None]
        return Groups(
            form=self.form,
            ints_OI=np.concatenate([part.ints_OI for part in parts]),
            deltas_OG=np.concatenate([part.deltas_OG for part in parts]),
            minima_OG=np.concatenate(minima) if minima else None,
        )

    def packed(self) -> Matrix:
        """Laid out for the kernels."""
        return pack(self)

    def __len__(self) -> int:
        return len(self.ints_OI)

    def values(self) -> Floats:
        """What the integers stand for, in float32 [O, I]."""
        zero = np.float32(self.form.zero)
        ints = self.ints_OI.reshape(*self.deltas_OG.shape, self.form.group).astype(np.float32) - zero
        ints *= self.deltas_OG[..., None].astype(np.float32)
        if self.minima_OG is not None:
            ints += self.minima_OG[..., None].astype(np.float32)
        return _mix(ints).reshape(self.ints_OI.shape) if self.form.mixed else ints.reshape(self.ints_OI.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A packed matrix, ready for `grouped_matmul` or `float_matmul`."""

    form: Format
    data: Bytes
    # Without padding.
    num_outputs: int
    num_inputs: int

    @property
    def padded_outputs(self) -> int:
        """Columns that a product writes."""
        return -(-self.num_outputs // LANES) * LANES


def unpack_blocks(form: Format, blocks_OGB: Bytes) -> Groups:
    """GGUF's blocks of a matrix, uint8 [O, G, bytes of a block]."""
    num_outputs, num_groups, _ = blocks_OGB.shape
    halves = np.ascontiguousarray(blocks_OGB[:, :, : 4 if form.has_minima else 2]).view(np.float16)
    packed = blocks_OGB[:, :, 2 * halves.shape[2] :]
    # Of 8 bits, int8 becomes its distance from -128.
    ints = np.bitwise_xor(packed, 128) if form.bits == 8 else np.concatenate((packed & 15, packed >> 4), axis=2)
    return Groups(
        form=form,
        ints_OI=ints.astype(np.uint8, copy=False).reshape(num_outputs, num_groups * GROUP),
        deltas_OG=halves[:, :, 0],
        minima_OG=halves[:, :, 1] if form.has_minima else None,
    )


def _mix(groups_OGI: Floats) -> Floats:
    """Groups times the orthogonal Hadamard matrix of Sylvester's construction; twice gives them back.

    Sums and differences in the order of `kernels.groups.mixed`: a product by BLAS would round as the machine does.
    """
    whole, size = groups_OGI, groups_OGI.shape[-1]
    distance = size // 2
    while distance:
        pairs = whole.reshape(-1, 2, distance)
        whole = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
        distance //= 2
    return whole.reshape(groups_OGI.shape) * np.float32(size**-0.5)


def quantize(weight_OI: Floats, *, form: Format = MIXED_32, grid_OG: Floats | None = None) -> Groups:
    """Mixed, then symmetric int8 with d = max |w| / 127 a group, rounded to float16 before the integers are chosen.

    ``grid_OG``, of use to groups of 32, tells that the values of each are m + d q with integers q, and what d is: mixed
    they are integers times d / sqrt(32), all but the first, which has m. With that step, in groups where the largest
    fits into a byte, only the first is rounded.
    """
    num_outputs, num_inputs = weight_OI.shape
    groups = _mix(weight_OI.reshape(num_outputs, num_inputs // form.group, form.group))
    largest = np.abs(groups).max(axis=2)
    deltas = (largest / np.float32(127)).astype(np.float16)
    if grid_OG is not None and form.group == GROUP:
        own = (grid_OG * np.float32(form.group**-0.5)).astype(np.float16)
        deltas = np.where(own.astype(np.float32) * np.float32(127.5) > largest, own, deltas)
    safe = np.where(deltas == 0, np.float32(1), deltas.astype(np.float32))
    ints = np.rint(groups / safe[:, :, None]).clip(-127, 127) + 128
    return Groups(form=form, ints_OI=ints.astype(np.uint8).reshape(weight_OI.shape), deltas_OG=deltas)


def pack(groups: Groups, out: Bytes | None = None) -> Matrix:
    """Lay a matrix out for the kernel, into ``out`` where it is given. Inputs must be a multiple of the group."""
    form = groups.form
    num_outputs, num_inputs = groups.ints_OI.shape
    num_groups, num_vectors = num_inputs // form.group, form.group // 4
    assert num_inputs % form.group == 0, "the caller has checked it"
    data = np.zeros(form.num_bytes(num_outputs, num_inputs), np.uint8) if out is None else out
    tiles = data.reshape(-1, num_groups, form.group_bytes)
    for first in range(0, len(tiles), _TILES_AT_ONCE):
        rows = slice(first * LANES, (first + _TILES_AT_ONCE) * LANES)
        part = tiles[first : first + _TILES_AT_ONCE]
        # [tile, output, group, vector, 4 bytes] -> [tile, group, vector, output, 4 bytes]
        ints = padded(groups.ints_OI[rows]).reshape(-1, LANES, num_groups, num_vectors, 4).transpose(0, 2, 3, 1, 4)
        if form.bits == 4:
            ints = ints[:, :, :4] | (ints[:, :, 4:] << 4)
        num_bytes = form.group * form.bits * LANES // 8
        part[:, :, :num_bytes] = ints.reshape(len(part), num_groups, num_bytes)
        scales = [groups.deltas_OG] if groups.minima_OG is None else [groups.deltas_OG, groups.minima_OG]
        for place, halves in enumerate(scales):
            lanes = np.ascontiguousarray(padded(halves[rows]).reshape(-1, LANES, num_groups).transpose(0, 2, 1))
            start = num_bytes + 2 * LANES * place
            part[:, :, start : start + 2 * LANES] = lanes.view(np.uint8)
    return Matrix(form=form, data=data, num_outputs=num_outputs, num_inputs=num_inputs)


def padded(rows: NDArray[Any]) -> NDArray[Any]:
    """Zero rows up to a whole tile: with a scale of 0 they stand for 0."""
    missing = -len(rows) % LANES
    return np.concatenate((rows, np.zeros((missing, *rows.shape[1:]), rows.dtype))) if missing else rows


BY_GGUF_NAME = {"Q8_0": Q8_0, "Q4_0": Q4_0, "Q4_1": Q4_1}
