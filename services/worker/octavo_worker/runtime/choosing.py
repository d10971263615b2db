"""From hidden states to what is told of each row: logits in slices, verification, log-probabilities of the prompt."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from octavo_worker.engine.plan import RowResult
from octavo_worker.engine.types import SeqId, TokenLogprobs
from octavo_worker.runtime.computing import Runner
from octavo_worker.runtime.inputs import ForwardInputs
from octavo_worker.verify.base import Verifier


def choose(inputs: ForwardInputs, hidden_TD: Tensor, runner: Runner, verifier: Verifier) -> dict[SeqId, RowResult]:
    """Results of the rows that want something."""
    results: dict[SeqId, RowResult] = {}
    counts_R = [1 + len(row.draft) for row in inputs.wanted_rows]
    for rows, logits_SV in runner.logits(hidden_TD, counts_R, inputs.wanted_S):
        verdicts = verifier.verify(inputs.wanted_rows[rows], logits_SV)
        for seq_id, verdict in zip(inputs.wanted_ids[rows], verdicts, strict=True):
            results[seq_id] = RowResult(
                tokens=verdict.tokens,
                logprobs=verdict.logprobs,
                siblings=verdict.siblings,
                sibling_logprobs=verdict.sibling_logprobs,
                candidates=verdict.candidates,
                error=verdict.error,
            )
    for seq_id, told in _score(inputs, hidden_TD, runner, verifier).items():
        kept = tuple(logprobs for logprobs in told if logprobs is not None)
        error = None if len(kept) == len(told) else "the model's logits of the prompt are not finite"
        found = results.get(seq_id, RowResult())
        results[seq_id] = replace(found, prompt_logprobs=kept, error=found.error or error)
    return results


def _score(
    inputs: ForwardInputs, hidden_TD: Tensor, runner: Runner, verifier: Verifier
) -> dict[SeqId, list[TokenLogprobs | None]]:
    found: dict[SeqId, list[TokenLogprobs | None]] = {}
    # Each position is on its own: a long prompt is cut wherever a slice is full.
    for part, logits_SV in runner.logits(hidden_TD, [1] * len(inputs.scored_ids), inputs.scored_S):
        told = verifier.score(inputs.scored_tokens[part], logits_SV)
        for seq_id, logprobs in zip(inputs.scored_ids[part], told, strict=True):
            found.setdefault(seq_id, []).append(logprobs)
    return found
