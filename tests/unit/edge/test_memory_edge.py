"""A stage's peak of memory is its own."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from octavo_edge.memory import PeakMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts between two moments")
SIZE = 200 << 20


def test_the_peak_between_is_seen_and_the_one_before_is_not():
    del_me = np.ones(SIZE, np.uint8)
    before = PeakMemory.start().peak_bytes()
    del del_me
    after = PeakMemory.start().peak_bytes()
    assert after < before - 0.9 * SIZE
    measured = PeakMemory.start()
    del_me = np.ones(SIZE, np.uint8)
    del del_me
    assert measured.peak_bytes() > after + 0.9 * SIZE


def test_what_was_freed_in_small_pieces_is_given_back():
    # Small blocks come from the heap, whose end one survivor keeps from shrinking by itself.
    pieces = [np.ones(4096, np.uint8) for _ in range(SIZE // 4096)]
    before = PeakMemory.start().peak_bytes()
    last = pieces.pop()
    pieces.clear()
    assert PeakMemory.start().peak_bytes() < before - 0.8 * SIZE
    assert last.size
