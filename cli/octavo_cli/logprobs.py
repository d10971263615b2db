"""Log-probabilities as lines for people: one for each token of an answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import octavo


def logprob_lines(text: str, token_ids: Sequence[int], logprobs: Sequence[octavo.TokenLogprobs]) -> str:
    """A line for each token: its text, id, log-probability, probability and rank, and the likeliest by their ids."""
    offsets = [told.text_offset for told in logprobs]
    # A token that a moved job's earlier worker made has no offset: its text stays with the one before it.
    ends = [*(max(pair) for pair in pairwise(offsets)), len(text)]
    words = [repr(text[start:end]) for start, end in zip(offsets, ends, strict=True)]
    width = min(max(map(len, words)), 24)
    return "\n".join(
        _line(word.ljust(width), token, told) for word, token, told in zip(words, token_ids, logprobs, strict=True)
    )


def _line(word: str, token: int, told: octavo.TokenLogprobs) -> str:
    if told.logprob is None:
        return f"{word}  {token:>7}  not known"
    top = ", ".join(f"{other} {logprob:.3f}" for other, logprob in told.top)
    line = f"{word}  {token:>7}  {told.logprob:9.4f}  {math.exp(told.logprob):7.2%}  rank {told.rank}"
    return f"{line}  likeliest: {top}" if top else line
