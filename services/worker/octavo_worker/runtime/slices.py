"""Cuts wanted positions into slices whose logits take a bounded number of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def cut_positions(counts_R: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """(rows, their positions) in order, at most so many positions a slice; a row is never cut, however long."""
    first_row = first = 0
    while first_row < len(counts_R):
        last_row, last = first_row + 1, first + counts_R[first_row]
        while last_row < len(counts_R) and last + counts_R[last_row] - first <= most:
            last += counts_R[last_row]
            last_row += 1
        yield slice(first_row, last_row), slice(first, last)
        first_row, first = last_row, last
