"""Stop strings are found as by searching the whole text, however it is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_common.text.stopping import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=6)


def first_match(text: str, stop: list[str]) -> tuple[int, int] | None:
    """(end, start) of the match that ends first; the longest of those that end there."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if s and text[:end].endswith(s)]
        if starts:
            return end, min(starts)
    return None


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(LETTERS, max_size=8), stop=st.lists(LETTERS, max_size=4))
def test_the_first_match_is_found_across_pieces(pieces, stop):
    expected = first_match("".join(pieces), stop)
    matcher, num_read = StopMatcher(stop), 0
    for piece in pieces:
        found = matcher.push(piece)
        if found is not None:
            end = num_read + found[0]
            assert (end, end - found[1]) == expected
            return
        num_read += len(piece)
    assert expected is None


@settings(max_examples=500, deadline=None)
@given(text=LETTERS, stop=st.lists(LETTERS, max_size=4))
def test_what_is_held_is_the_longest_end_that_may_become_a_stop_string(text, stop):
    matcher = StopMatcher(stop)
    if matcher.push(text) is not None:
        return
    beginnings = {s[:n] for s in stop for n in range(len(s))}
    assert matcher.num_held == max((n for n in range(len(text) + 1) if text[len(text) - n :] in beginnings), default=0)
