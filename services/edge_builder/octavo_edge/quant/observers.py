"""Ranges of activations from the batches that calibration shows, one after another, in memory that does not grow."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.grid import IntGrid, affine_from_range, dequantise, quantise

Range = tuple[float, float]

_BINS = 4096  # on each side of zero
_MSE_FRACTIONS = np.linspace(0.3, 1.0, 36)


class Observer(Protocol):
    """Sees values and says which range their grid has to cover."""

    def see(self, values: NDArray[Any]) -> None:
        """Take in a batch, of any shape. ValueError if a value is not finite."""
        ...

    def range(self) -> Range:
        """The range to cover. ValueError if nothing was seen."""
        ...


class MinMax:
    """All that was seen, and ``headroom`` more at either end."""

    def __init__(self, headroom: float = 0.0) -> None:
        self._headroom = headroom
        self._lowest, self._highest = np.inf, -np.inf

    def see(self, values: NDArray[Any]) -> None:
        """Take in a batch."""
        if not values.size:
            return
        lowest, highest = float(values.min()), float(values.max())
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            raise CannotQuantise("values that are not finite have no range")
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)

    def range(self) -> Range:
        """The range seen."""
        if self._lowest > self._highest:
            raise CannotQuantise("no value was seen")
        return self._lowest * (1 + self._headroom), self._highest * (1 + self._headroom)


class _Histogram:
    """Counts of bins that end at multiples of a width, which doubles when values outgrow the bins."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 * _BINS, dtype=np.int64)
        self.width = 0.0
        self.extent = MinMax()

    def see(self, values: NDArray[Any]) -> None:
        self.extent.see(values)
        flat = values.reshape(-1).astype(np.float64)
        most = float(np.abs(flat).max()) if flat.size else 0.0
        if most == 0.0:
            self.counts[_BINS] += flat.size
            return
        if self.width == 0.0:
            self.width = most / (_BINS - 1)
        while most >= self.width * (_BINS - 1):
            self._double()
        index = np.floor(flat / self.width).astype(np.int64) + _BINS
        self.counts += np.bincount(index, minlength=2 * _BINS)

    def _double(self) -> None:
        merged = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = np.zeros_like(self.counts)
        self.counts[_BINS // 2 : _BINS // 2 + _BINS] = merged
        self.width *= 2

    @property
    def centres(self) -> NDArray[np.float64]:
        return np.asarray((np.arange(-_BINS, _BINS) + 0.5) * self.width, dtype=np.float64)


class Percentile:
    """The range that leaves (100 - percentile) / 2 percent of all values outside at either end, to a bin's width."""

    def __init__(self, percentile: float) -> None:
        self._percentile = percentile
        self._histogram = _Histogram()

    def see(self, values: NDArray[Any]) -> None:
        """Take in a batch."""
        self._histogram.see(values)

    def range(self) -> Range:
        """The range, never wider than what was seen."""
        lowest, highest = self._histogram.extent.range()
        counts = self._histogram.counts
        outside = counts.sum() * (100.0 - self._percentile) / 200.0
        below, above = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
        first = int(np.argmax(below > outside))
        last = len(counts) - 1 - int(np.argmax(above[::-1] > outside))
        width = self._histogram.width
        return max(lowest, (first - _BINS) * width), min(highest, (last + 1 - _BINS) * width)


class MSE:
    """Of shrunk ranges the one whose grid leaves the least squared error over all values seen."""

    def __init__(self, grid: IntGrid) -> None:
        self._grid = grid
        self._histogram = _Histogram()

    def see(self, values: NDArray[Any]) -> None:
        """Take in a batch."""
        self._histogram.see(values)

    def range(self) -> Range:
        """The best range, never wider than what was seen."""
        lowest, highest = self._histogram.extent.range()
        filled = self._histogram.counts > 0
        counts = self._histogram.counts[filled]
        values = self._histogram.centres[filled].astype(np.float32)
        best, chosen = np.inf, (lowest, highest)
        for fraction in _MSE_FRACTIONS[::-1]:
            scale, zero_point = affine_from_range(lowest * fraction, highest * fraction, self._grid)
            back = dequantise(quantise(values, scale, self._grid, zero_point), scale, zero_point)
            error = float(np.sum(counts * (back.astype(np.float64) - values) ** 2))
            if error < best:
                best, chosen = error, (lowest * fraction, highest * fraction)
        return chosen
