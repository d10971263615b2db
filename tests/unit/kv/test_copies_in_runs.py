"""Copies that go together give what one after the other gives, in whatever order a run's are made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from octavo_worker.kv.runs import cut_runs

BLOCKS = st.integers(0, 6)
PAIRS = st.lists(st.tuples(BLOCKS, BLOCKS).filter(lambda pair: pair[0] != pair[1]), max_size=12)


@settings(max_examples=300)
@given(pairs=PAIRS, data=st.data())
def test_any_order_within_a_run_is_one_after_the_other(pairs, data):
    wanted = list(range(7))
    for source, target in pairs:
        wanted[target] = wanted[source]
    found = list(range(7))
    runs = list(cut_runs(pairs))
    assert [pair for run in runs for pair in run] == pairs
    for run in runs:
        before = list(found)
        for source, target in data.draw(st.permutations(run)):
            assert found[source] == before[source]
            found[target] = found[source]
    assert found == wanted


def test_pairs_that_do_not_meet_are_one_run():
    assert list(cut_runs([(0, 1), (0, 2), (3, 4)])) == [[(0, 1), (0, 2), (3, 4)]]
    assert list(cut_runs([(0, 1), (1, 2)])) == [[(0, 1)], [(1, 2)]]
