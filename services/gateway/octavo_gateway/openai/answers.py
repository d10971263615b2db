"""Answers of the OpenAI API as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from octavo_common.jobs.model import GENERATION, Job
from octavo_common.jobs.spec import ChoiceResult, GenerationResult, JobFailure, UsageRecord
from octavo_gateway.values import ModelInfo


def usage(*records: UsageRecord) -> dict[str, Any]:
    """OpenAI's counts, and under `octavo` what it has no name for; of several jobs the sums, and the longest times."""
    seeds = {record.seed for record in records}
    counts = token_counts(
        sum(record.prompt_tokens for record in records), sum(record.completion_tokens for record in records)
    )
    return counts | {
        "prompt_tokens_details": {"cached_tokens": sum(record.cached_tokens for record in records)},
        "octavo": {
            # Each job draws its own where none was given.
            "seed": seeds.pop() if len(seeds) == 1 else None,
            "num_preemptions": sum(record.num_preemptions for record in records),
            "num_losses": sum(record.num_losses for record in records),
            "numerics_changed": any(record.numerics_changed for record in records),
            "queue_s": _longest(record.queue_s for record in records),
            "time_to_first_token_s": _longest(record.time_to_first_token_s for record in records),
            "total_s": _longest(record.total_s for record in records),
        },
    }


def _longest(times_s: Iterable[float | None]) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)


def token_counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The three counts that every usage has."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def model(info: ModelInfo) -> dict[str, Any]:
    """An entry of /v1/models; the longest sequence has the name that other servers gave it."""
    return {
        "id": info.name,
        "object": "model",
        "created": int(info.created_s),
        "owned_by": "octavo",
        "max_model_len": info.max_sequence_tokens,
        "octavo": {
            "digest": info.digest,
            "family": info.family,
            "numerics_ids": list(info.numerics_ids),
            "num_workers": info.num_workers,
        },
    }


def job(row: Job) -> dict[str, Any]:
    """A job. A generation's text stands there once it has succeeded, as long as its content is kept."""
    return {
        "id": str(row.id),
        "object": "job",
        "kind": row.kind,
        "state": row.state.value,
        "model": row.model,
        "created_at": _seconds(row.created_at),
        "started_at": _seconds(row.started_at),
        "ended_at": _seconds(row.ended_at),
        "cancel_requested": row.cancel_requested,
        "num_prompt_tokens": row.num_prompt_tokens,
        # Tokens that are known to exist by now.
        "num_tokens": row.num_tokens,
        **_outcome(row.result if row.kind == GENERATION else None),
        "error": _failure(row.error),
        "content_kept": row.content_kept,
    }


def jobs(rows: Sequence[Job], *, has_more: bool) -> dict[str, Any]:
    """A page of jobs in the form of OpenAI's lists; the last id is the next page's `after`."""
    return {
        "object": "list",
        "data": [job(row) for row in rows],
        "first_id": str(rows[0].id) if rows else None,
        "last_id": str(rows[-1].id) if rows else None,
        "has_more": has_more,
    }


def _outcome(result: Mapping[str, Any] | None) -> dict[str, Any]:
    if result is None:
        return {"text": None, "token_ids": None, "finish_reason": None, "usage": None, "choices": None}
    # Without its content once the retention time is over; the figures stay.
    kept = {"text": "", "token_ids": ()} | dict(result)
    value = GenerationResult.from_json(kept)
    return {
        "text": value.text if "text" in result else None,
        "token_ids": list(value.token_ids) if "token_ids" in result else None,
        "finish_reason": value.finish_reason,
        "usage": usage(value.usage),
        "choices": [_choice(choice) for choice in value.choices] if "token_ids" in result else None,
    }


def _choice(choice: ChoiceResult) -> dict[str, Any]:
    """An answer; `text_offset` and the like are left to the endpoints that know the tokens' names."""
    return {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "logprobs": [told.logprob for told in choice.logprobs] or None,
        "score": choice.score,
    }


def _failure(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if error is None:
        return None
    failure = JobFailure.from_json(dict(error))
    return {
        "code": failure.code.lower(),
        "message": failure.message,
        "hint": failure.hint,
        "param": failure.param or None,
    }


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
