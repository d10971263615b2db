"""Turns a job into what the engine is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_common.jobs.model import Job
from octavo_common.jobs.spec import GenerationSpec
from octavo_worker.engine.types import BeamParams, Request, SamplingParams


def num_computed(spec: GenerationSpec) -> int:
    """Answers that the engine gives: of sampled ones all, of beams those that are returned.

    Stop strings may cut several beams to one text: then all are needed to find those that differ.
    """
    if spec.beam_width:
        return spec.beam_width if spec.stop else spec.n
    return max(spec.n, spec.best_of)


def needs_logprobs(spec: GenerationSpec) -> bool:
    """Whether log-probabilities are told, or rank the answers."""
    return spec.logprobs is not None or (spec.best_of > spec.n and not spec.beam_width)


def engine_request(
    job: Job, spec: GenerationSpec, *, name: str, eos_ids: Sequence[int], due: float | None = None, grammar: str = ""
) -> Request:
    """The request under this name; ``grammar`` names one that has been compiled, ``due`` is on the monotonic clock."""
    return Request(
        id=name,
        prompt=job.prompt_ids,
        output=() if spec.restarts else job.emitted_ids,
        params=_params(spec, eos_ids, grammar),
        salt=job.cache_salt,
        priority=job.priority,
        fair_key=job.fair_key,
        due=due,
        num_choices=num_computed(spec),
        beam=_beam(spec),
    )


def _params(spec: GenerationSpec, eos_ids: Sequence[int], grammar: str) -> SamplingParams:
    return SamplingParams(
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        seed=spec.seed,
        # Without a token to choose the engine does not look at the prompt; this one is dropped.
        max_tokens=spec.max_tokens or (0 if spec.prompt_logprobs is None else 1),
        stop_token_ids=frozenset(spec.stop_token_ids) | (frozenset() if spec.ignore_eos else frozenset(eos_ids)),
        min_tokens=spec.min_tokens,
        min_p=spec.min_p,
        repetition_penalty=spec.repetition_penalty,
        presence_penalty=spec.presence_penalty,
        frequency_penalty=spec.frequency_penalty,
        logit_bias=spec.logit_bias,
        bad_words=spec.bad_words,
        allowed_token_ids=frozenset(spec.allowed_token_ids),
        grammar=grammar,
        num_logprobs=(spec.logprobs or 0) if needs_logprobs(spec) else None,
        num_prompt_logprobs=spec.prompt_logprobs,
        processed_logprobs=spec.processed_logprobs,
    )


def _beam(spec: GenerationSpec) -> BeamParams | None:
    if not spec.beam_width:
        return None
    return BeamParams(width=spec.beam_width, length_penalty=spec.length_penalty, early_stopping=spec.early_stopping)
