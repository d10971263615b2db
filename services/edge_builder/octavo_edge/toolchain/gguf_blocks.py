"""Weights as llama.cpp stores them: blocks of 32 numbers with one float16 scale, of 8 bits (Q8_0) or 4 (Q4_0).

Where our integers have one scale in each 32 of a row, they are the block's integers: nothing is rounded but the scale.
Shapes: O output channels, I inputs of a channel, B = I / 32 blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import QuantError, quantize
from numpy.typing import NDArray

from octavo_edge.quant.encodings import PerChannel, PerTensor
from octavo_edge.quant.plan import QuantisedWeight
from octavo_edge.quant.reading import Parameter, floats

__all__ = ["BLOCK", "Stored", "stored"]

BLOCK = 32
_KINDS = {4: GGMLQuantizationType.Q4_0, 8: GGMLQuantizationType.Q8_0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A tensor's bytes, by rows; `exact` says that its integers are ours."""

    data: NDArray[Any]
    kind: GGMLQuantizationType
    exact: bool


def stored(parameter: Parameter, rows: NDArray[np.intp] | None = None, *, least: GGMLQuantizationType) -> Stored:
    """A matrix, its rows in the order of `rows`.

    What cannot be stored as its own integers is rounded anew to `least`; a row that is no whole number of blocks is
    float16.
    """
    if isinstance(parameter, QuantisedWeight):
        scale_OB = _block_scales(parameter)
        if scale_OB is not None:
            integers_OI = parameter.integers.reshape(len(parameter.integers), -1).astype(np.int8)
            if rows is not None:
                integers_OI, scale_OB = integers_OI[rows], scale_OB[rows]
            bits = parameter.encoding.grid.bits
            return Stored(data=_blocks(integers_OI, scale_OB, bits), kind=_KINDS[bits], exact=True)
    values = floats(parameter)
    values_OI = np.ascontiguousarray(values.reshape(len(values), -1), np.float32)
    if rows is not None:
        values_OI = values_OI[rows]
    try:
        return Stored(data=quantize(values_OI, least), kind=least, exact=False)
    except QuantError:
        return Stored(data=values_OI.astype(np.float16), kind=GGMLQuantizationType.F16, exact=False)


def _block_scales(weight: QuantisedWeight) -> NDArray[np.float32] | None:
    """A scale for each 32 of each row, [O, B]; None where a block would need two, or a zero point."""
    encoding, num_rows = weight.encoding, len(weight.integers)
    num_inputs = weight.integers.size // num_rows
    if encoding.grid.bits not in _KINDS or not encoding.grid.signed or num_inputs % BLOCK:
        return None
    num_blocks = num_inputs // BLOCK
    if isinstance(encoding, PerTensor):
        if encoding.zero_point:
            return None
        return np.full((num_rows, num_blocks), encoding.scale, np.float32)
    if isinstance(encoding, PerChannel):
        return np.repeat(encoding.scales[:, None], num_blocks, axis=1) if encoding.axis == 0 else None
    if encoding.axis != 1 or encoding.block_size % BLOCK:
        return None
    return np.repeat(encoding.scales, encoding.block_size // BLOCK, axis=1)


def _blocks(integers_OI: NDArray[np.int8], scale_OB: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """Each block its scale's two bytes, then its integers: a byte each, or number i and i + 16 in one, plus 8."""
    num_rows = len(integers_OI)
    parts_OBN = integers_OI.reshape(num_rows, -1, BLOCK)
    if bits == 8:
        body = parts_OBN.view(np.uint8)
    else:
        raised = (parts_OBN + 8).astype(np.uint8)
        body = (raised[..., : BLOCK // 2] | raised[..., BLOCK // 2 :] << 4).astype(np.uint8)
    head = scale_OB.astype("<f2")[..., None].view(np.uint8)
    whole = np.concatenate((head, body), axis=2).reshape(num_rows, -1)
    _, num_bytes = GGML_QUANT_SIZES[_KINDS[bits]]
    assert whole.shape[1] == num_bytes * scale_OB.shape[1]
    return np.ascontiguousarray(whole)
