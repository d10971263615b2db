"""Answers of the OpenAI API as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_common.jobs.model import Job
from octavo_common.jobs.spec import ChoiceResult, GenerationResult, JobFailure, UsageRecord
from octavo_gateway.values import ModelInfo


def usage(record: UsageRecord) -> dict[str, Any]:
    """OpenAI's counts, and under `octavo` what it has no name for."""
    counts = token_counts(record.prompt_tokens, record.completion_tokens)
    return counts | {
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        "octavo": {
            "seed": record.seed,
            "num_preemptions": record.num_preemptions,
            "num_losses": record.num_losses,
            "numerics_changed": record.numerics_changed,
            "queue_s": record.queue_s,
            "time_to_first_token_s": record.time_to_first_token_s,
            "total_s": record.total_s,
        },
    }


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
    """A job. Its text stands there once it has succeeded, as long as its content is kept."""
    return {
        "id": str(row.id),
        "object": "job",
        "state": row.state.value,
        "model": row.model,
        "created_at": _seconds(row.created_at),
        "started_at": _seconds(row.started_at),
        "ended_at": _seconds(row.ended_at),
        "cancel_requested": row.cancel_requested,
        "num_prompt_tokens": row.num_prompt_tokens,
        # Tokens that are known to exist by now.
        "num_tokens": row.num_tokens,
        **_outcome(row.result),
        "error": _failure(row.error),
        "content_kept": row.content_kept,
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
    return {"code": failure.code.lower(), "message": failure.message, "hint": failure.hint}


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
