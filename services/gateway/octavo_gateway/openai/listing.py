"""Reads what a listing of jobs asks for out of a URL's query. Knows no jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_common.jobs.model import JobState
from octavo_gateway.openai.errors import BadRequest

# As OpenAI's lists have it.
DEFAULT_LIMIT = 20
MAX_LIMIT = 100
FIELDS = ("limit", "after", "state", "model", "tenant")


def read_listing(query: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of GenerationApi.jobs. Raises BadRequest."""
    unknown = next((name for name in query if name not in FIELDS), None)
    if unknown is not None:
        raise BadRequest(
            f"there is no parameter {unknown[:80]!r}",
            code="UNKNOWN_PARAMETER",
            param=unknown[:80],
            hint=f"there are {', '.join(FIELDS)}",
        )
    return {
        "limit": _limit(query.get("limit", str(DEFAULT_LIMIT))),
        "after": query.get("after", ""),
        "states": [_state(name) for name in query.get("state", "").split(",") if name],
        "model": query.get("model", ""),
        "tenant": query.get("tenant", ""),
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_LIMIT):
        raise BadRequest(
            f"limit must be a whole number from 1 to {MAX_LIMIT}, not {text[:20]!r}",
            code="INVALID_ARGUMENT",
            param="limit",
        )
    return int(text)


def _state(name: str) -> JobState:
    try:
        return JobState(name)
    except ValueError:
        raise BadRequest(
            f"{name[:20]!r} is no state of a job",
            code="INVALID_ARGUMENT",
            param="state",
            hint=f"states are {', '.join(JobState)}",
        ) from None
