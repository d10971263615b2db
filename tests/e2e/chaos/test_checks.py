"""The checks themselves: what exact workers promise is not excused by a tie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import chaos_checks
import pytest
from chaos_checks import check_tokens
from chaos_load import Ask, Outcome

EXPECTED = Outcome(ask=Ask(prompt="a", parameters={}), job_id="1", token_ids=(1, 2, 3))


@pytest.mark.parametrize(("exact", "margin", "excused"), [(True, 0.0, False), (False, 0.0, True), (False, 1.0, False)])
def test_another_token_is_excused_at_a_tie_unless_the_workers_are_exact(
    monkeypatch: pytest.MonkeyPatch, exact: bool, margin: float, excused: bool
) -> None:
    monkeypatch.setattr(chaos_checks, "_margin", lambda *_: margin)
    other = replace(EXPECTED, token_ids=(1, 9, 3))
    report = check_tokens([EXPECTED], [other], [[7]], model=Path("none"), exact=exact)
    assert (bool(report.troubles), report.num_ties) == (not excused, int(excused))


def test_equal_tokens_are_no_trouble_and_missing_ones_always_are() -> None:
    for exact in (True, False):
        same = check_tokens([EXPECTED], [EXPECTED], [[7]], model=Path("none"), exact=exact)
        short = check_tokens([EXPECTED], [replace(EXPECTED, token_ids=(1, 2))], [[7]], model=Path("none"), exact=exact)
        assert (same.troubles, len(short.troubles)) == ([], 1)
