"""Answers of the OpenAI API as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_common.jobs.model import Job
from octavo_common.jobs.spec import GenerationResult, JobFailure, UsageRecord
from octavo_gateway.values import AcceptedJob, Finish, ModelInfo


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


class Shape:
    """The JSON of one accepted generation: its head is the same in every piece."""

    def __init__(self, accepted: AcceptedJob, *, chat: bool) -> None:
        self._chat = chat
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{accepted.job_id}",
            "created": int(accepted.create_time.timestamp()),
            "model": accepted.model,
            "system_fingerprint": None,
        }

    def whole(self, text: str, finish: Finish) -> dict[str, Any]:
        """The answer in one piece."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish.finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return self._head | {"object": kind, "choices": [choice], "usage": usage(finish.usage)}

    def opening(self) -> dict[str, Any] | None:
        """The first piece of a stream; only chats have one, that names the role."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self._chat else None

    def piece(self, text: str) -> dict[str, Any]:
        """A piece of text."""
        return self._chunk({"delta": {"content": text}} if self._chat else {"text": text}, None)

    def closing(self, finish: Finish) -> dict[str, Any]:
        """The piece that says why the answer ended."""
        return self._chunk({"delta": {}} if self._chat else {"text": ""}, finish.finish_reason)

    def usage_piece(self, finish: Finish) -> dict[str, Any]:
        """The piece after the last, without a choice."""
        return self._head | {"object": self._kind, "choices": [], "usage": usage(finish.usage)}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return self._head | {"object": self._kind, "choices": [choice]}


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
        return {"text": None, "token_ids": None, "finish_reason": None, "usage": None}
    # Without its content once the retention time is over; the figures stay.
    kept = {"text": "", "token_ids": ()} | dict(result)
    value = GenerationResult.from_json(kept)
    return {
        "text": value.text if "text" in result else None,
        "token_ids": list(value.token_ids) if "token_ids" in result else None,
        "finish_reason": value.finish_reason,
        "usage": usage(value.usage),
    }


def _failure(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if error is None:
        return None
    failure = JobFailure.from_json(dict(error))
    return {"code": failure.code.lower(), "message": failure.message, "hint": failure.hint}


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
