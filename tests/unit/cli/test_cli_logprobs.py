"""The readable form of log-probabilities: the texts of the lines make the answer, the figures are math's."""

from __future__ import annotations

import ast
import math

from hypothesis import given
from hypothesis import strategies as st

import octavo
from octavo_cli.logprobs import logprob_lines


@given(st.lists(st.tuples(st.text(max_size=30), st.floats(-20, 0)), min_size=1, max_size=20))
def test_the_lines_have_the_whole_text_and_each_tokens_figures(pieces: list[tuple[str, float]]) -> None:
    text, told = "", []
    for number, (piece, logprob) in enumerate(pieces):
        told.append(octavo.TokenLogprobs(logprob=logprob, rank=number + 1, top=((7, -0.5),), text_offset=len(text)))
        text += piece
    lines = logprob_lines(text, range(len(pieces)), told).split("\n")
    assert len(lines) == len(pieces)
    shown = ""
    for number, (line, (piece, logprob)) in enumerate(zip(lines, pieces, strict=True)):
        assert line.startswith(repr(piece))
        shown += ast.literal_eval(line[: len(repr(piece))])
        figures = line[len(repr(piece)) :].split()
        assert figures[:2] == [str(number), f"{logprob:.4f}"]
        assert float(figures[2].rstrip("%")) == round(100 * math.exp(logprob), 2)
        assert figures[3:] == ["rank", str(number + 1), "likeliest:", "7", "-0.500"]
    assert shown == text


def test_tokens_of_which_nobody_knows_say_so() -> None:
    told = [octavo.TokenLogprobs(logprob=None), octavo.TokenLogprobs(logprob=-1.0, rank=2, text_offset=3)]
    first, second = logprob_lines("one two", [1, 2], told).split("\n")
    assert first.startswith("'one'") and first.endswith("not known")
    assert second.startswith("' two'") and second.endswith("rank 2")
