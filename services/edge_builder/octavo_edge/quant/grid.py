"""Integer grids and how real numbers land on them, as ONNX's QuantizeLinear and DequantizeLinear define it.

``x = (q - zero_point) * scale`` with q rounded half to even and saturated. Scales are float32. Knows no tensor's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]

# Below this a scale is no normal float32, and 1 / scale may overflow.
LEAST_SCALE = np.float32(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntGrid:
    """The integers of a number of bits, in two's complement or from zero."""

    bits: int
    signed: bool

    @property
    def name(self) -> str:
        """As ONNX and encodings files spell it: ``int4``, ``uint16``."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def lowest(self) -> int:
        """The least integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """The greatest integer."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type that holds one integer (a byte also for 4 bits)."""
        bits = 8 if self.bits <= 8 else 16
        return np.dtype(f"{'int' if self.signed else 'uint'}{bits}")


INT4 = IntGrid(bits=4, signed=True)
INT8 = IntGrid(bits=8, signed=True)
INT16 = IntGrid(bits=16, signed=True)
UINT8 = IntGrid(bits=8, signed=False)
UINT16 = IntGrid(bits=16, signed=False)
GRIDS = {grid.name: grid for grid in (INT4, INT8, INT16, UINT8, UINT16)}


def quantise(values: Floats, scale: Floats | float, grid: IntGrid, zero_point: int = 0) -> Ints:
    """The integers nearest to values; ``scale`` is broadcast against them."""
    # In place: a table of words has several copies otherwise, each of a hundred megabytes or more.
    scaled = np.asarray(values / np.asarray(scale, dtype=np.float32))
    np.rint(scaled, out=scaled)
    if zero_point:
        scaled += zero_point
    return np.clip(scaled, grid.lowest, grid.highest, out=scaled).astype(grid.storage)


def dequantise(integers: Ints, scale: Floats | float, zero_point: int = 0) -> Floats:
    """The real numbers that integers stand for."""
    values = integers.astype(np.float32)  # exact: integers have 16 bits at most
    if zero_point:
        values -= zero_point
    factor = np.asarray(scale, dtype=np.float32)
    fits = np.broadcast_shapes(values.shape, factor.shape) == values.shape
    return np.multiply(values, factor, out=values if fits else None)


def affine_from_range(lowest: float, highest: float, grid: IntGrid) -> tuple[float, int]:
    """Scale and zero point of the grid that covers a range, which is widened to hold 0: padding and masks are exact."""
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    scale = safe_scale(np.float32((highest - lowest) / (grid.highest - grid.lowest)))
    zero_point = int(np.rint(grid.lowest - lowest / float(scale)))
    return float(scale), min(max(zero_point, grid.lowest), grid.highest)


def symmetric_from_range(lowest: float, highest: float, grid: IntGrid) -> float:
    """Scale with which the larger magnitude of a range lands on the grid's highest integer; the zero point is 0."""
    assert grid.signed, "a symmetric grid has negative integers"
    return float(safe_scale(np.float32(max(abs(lowest), abs(highest)) / grid.highest)))


def safe_scale(scale: Any) -> Any:
    """Scales as float32, with 1 where all values are zero: every integer but 0 would then be unreachable anyway."""
    scale = np.asarray(scale, dtype=np.float32)
    return np.where(scale < LEAST_SCALE, np.float32(1.0), scale)
