"""What the executor is told of one sequence in one step, and whether its answer is one. Changes nothing."""

from __future__ import annotations

from octavo_worker.engine.plan import Draft, RowPlan, RowResult
from octavo_worker.engine.sequence import Sequence

_NONE = range(0)


def make_row(seq: Sequence, num_tokens: int, draft: Draft) -> RowPlan:
    """The row that feeds the next tokens. Its blocks are in the table already."""
    request, start = seq.request, seq.num_computed
    end, num_prompt = start + num_tokens, len(request.prompt)
    # Known tokens remain behind a row that ends earlier: what follows it need not be chosen.
    is_last = end == len(seq.tokens)
    wants, scored = range(end - 1, end) if is_last else _NONE, ()
    if request.params.num_prompt_logprobs is not None and seq.num_scored < num_prompt - 1:
        # Logits at p say how likely token p + 1 is: those at [first, last) are for prompt tokens [first + 1, last + 1).
        first, last = max(start, seq.num_scored), min(end, num_prompt - 1)
        if first < last:
            wants, scored = range(first, end if is_last else last), tuple(seq.tokens[first + 1 : last + 1])
    is_new = not seq.is_told
    return RowPlan(
        id=seq.id,
        start=start,
        tokens=tuple(seq.tokens[start:end]),
        draft=draft,
        first_block=seq.num_told_blocks,
        new_blocks=tuple(seq.table[seq.num_told_blocks :]),
        wants=wants,
        draws=seq.draws if is_last and seq.group is None else (),
        num_candidates=seq.group.search.num_candidates if is_last and seq.group is not None else 0,
        scored=scored,
        params=request.params if is_new else None,
        history=tuple(seq.tokens[:start]) if is_new and request.params.needs_history else (),
        num_prompt_tokens=num_prompt,
    )


def error_of(row: RowPlan, result: RowResult | None) -> str | None:
    """Why the result is none for the row; None when all is there that was asked for."""
    if result is None:
        return "the executor gave no result for the row"
    if result.error is not None:
        return result.error
    if bool(row.draws) != bool(result.tokens):
        return f"the executor gave {len(result.tokens)} tokens for {len(row.draws)} wanted"
    if row.draws and len(result.siblings) != len(row.draws) - 1:
        return f"the executor gave {len(result.siblings)} tokens of other choices for {len(row.draws) - 1} wanted"
    if (result.candidates is not None) != bool(row.num_candidates):
        return f"the executor gave {len(result.candidates or ())} candidates for {row.num_candidates} wanted"
    if len(result.prompt_logprobs) != len(row.scored):
        return f"the executor gave {len(result.prompt_logprobs)} log-probabilities for {len(row.scored)} known tokens"
    return None
