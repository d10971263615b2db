"""A beam search that scores every extension of every beam from its first token on. Slow and plain: an oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

from fakes.tiny_executor import VOCAB_SIZE, best_tokens
from octavo_worker.engine.types import Limits, Request

After = Callable[[tuple[int, ...]], object]
"""Log-probabilities of the next token after a prefix, by token."""


def naive_beams(
    after: After,
    *,
    width: int,
    max_tokens: int,
    stop: Collection[int] = (),
    length_penalty: float = 1.0,
    early_stopping: bool | None = False,
) -> list[tuple[float, tuple[int, ...]]]:
    """(score, tokens) of what is found, best first."""

    @functools.cache
    def total(tokens):
        return sum(after(tokens[:index])[token] for index, token in enumerate(tokens))

    beams, finished = [()], []
    for length in range(1, max_tokens + 1):
        extended = [(*beam, token) for beam in beams for token in range(len(after(())))]
        extended.sort(key=lambda tokens: -total(tokens))
        ended = {tokens for tokens in extended if tokens[-1] in stop or length == max_tokens}
        finished += [(total(t) / len(t) ** length_penalty, t) for t in extended[:width] if t in ended]
        finished = sorted(finished, key=lambda pair: -pair[0])[:width]
        beams = [tokens for tokens in extended if tokens not in ended][:width]
        if not beams or (early_stopping is True and len(finished) == width):
            break
        longest = max_tokens if early_stopping is None and length_penalty > 0 else length
        if len(finished) == width and total(beams[0]) / longest**length_penalty <= finished[-1][0]:
            break
    return finished


def tiny_after(prompt: Sequence[int]) -> After:
    """What the tiny executor says after a prompt."""

    @functools.cache
    def after(prefix):
        return dict(best_tokens([*prompt, *prefix], VOCAB_SIZE))

    return after


def expected_beams(request: Request, limits: Limits, *, num_blocks: int, block_size: int, lookahead: int = 0):
    """What a search must find where its beams share the full blocks of the prompt and have the rest of the pool."""
    num_prompt, width = len(request.prompt), request.beam.width
    shared = num_prompt // block_size
    longest = (shared + (num_blocks - shared) // width) * block_size - lookahead
    return naive_beams(
        tiny_after(request.prompt),
        width=width,
        max_tokens=min(request.params.max_tokens, min(longest, limits.max_sequence_tokens) - num_prompt),
        stop=request.params.stop_token_ids,
        length_penalty=request.beam.length_penalty,
        early_stopping=request.beam.early_stopping,
    )
