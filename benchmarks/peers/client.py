"""One client for all servers: completions over HTTP as a stream of server-sent events, with the time of each event."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

TTFT_S, GAP_S = 0.5, 0.1
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that runs, in OpenAI's dialect."""

    # Up to /v1.
    url: str
    model: str = ""
    key: str = ""
    # What makes it go on past the end of sequence.
    extra: Mapping[str, Any] = field(default_factory=dict)
    # Version and flags, for the page.
    about: str = ""
    # Bytes of a weight in memory; None is what the GGUF file has.
    bytes_per_weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request, in seconds."""

    # Empty when it was answered to the end.
    error: str = ""
    # From the time that the request was due to arrive, not from when it was sent.
    ttft_s: float = 0.0
    # Between events that carry text.
    gaps_s: tuple[float, ...] = ()
    # How much later than due it was sent: what the client itself is late.
    late_s: float = 0.0
    num_tokens: int = 0

    @property
    def is_good(self) -> bool:
        """Whether its first token and 99 in 100 of its gaps came in time."""
        return not self.error and self.ttft_s < TTFT_S and float(np.quantile(self.gaps_s, 0.99)) < GAP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that come by a Poisson process."""

    rate_per_s: float
    prompts: Sequence[str]
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a server did under a load."""

    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    # Requests in time for each second from the first arrival to the last answer, and their part of all.
    goodput_per_s: float
    good_share: float
    num_failed: int
    # Over the same time.
    tokens_per_s: float
    # Below 1 where a server sends several tokens in one event.
    events_per_token: float
    late_p99_s: float


async def _ask(client: httpx.AsyncClient, target: Target, prompt: str, max_tokens: int, due: float) -> Answer:
    """One request; ``due`` is on the clock of `time.perf_counter`."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **target.extra}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if target.model:
        body["model"] = target.model
    late_s = time.perf_counter() - due
    times: list[float] = []
    num_tokens = 0
    try:
        async with client.stream("POST", f"{target.url}/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                return Answer(error=f"{response.status_code}: {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    choices = event.get("choices")
                    if choices and choices[0].get("text"):
                        times.append(time.perf_counter())
                    if usage := event.get("usage"):
                        num_tokens = usage["completion_tokens"]
    except httpx.HTTPError as error:
        return Answer(error=f"{type(error).__name__}: {error}")
    if num_tokens != max_tokens or len(times) < 2:
        return Answer(error=f"{num_tokens} tokens in {len(times)} events instead of {max_tokens} tokens")
    gaps = tuple(b - a for a, b in pairwise(times))
    return Answer(ttft_s=times[0] - due, gaps_s=gaps, late_s=late_s, num_tokens=num_tokens)


async def drive(target: Target, load: Load) -> Summary:
    """Send all requests at their times, wait for all answers."""
    waits = np.random.default_rng(load.seed).exponential(1 / load.rate_per_s, len(load.prompts))
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_S, limits=limits, trust_env=False) as client:
        started = time.perf_counter()
        tasks: list[asyncio.Task[Answer]] = []
        for prompt, wait in zip(load.prompts, np.cumsum(waits) - waits[0], strict=True):
            due = started + float(wait)
            # By the schedule, whatever became of the requests before: else a slow server would be asked less.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(_ask(client, target, prompt, load.max_tokens, due)))
        answers = await asyncio.gather(*tasks)
        took = time.perf_counter() - started
    return summarise(answers, took)


def summarise(answers: Sequence[Answer], took_s: float) -> Summary:
    """Quantiles over all requests that were answered, and over all of their gaps."""
    done = [answer for answer in answers if not answer.error]
    if not done:
        raise RuntimeError(f"no request was answered: {answers[0].error}")
    num_good = sum(answer.is_good for answer in answers)
    ttfts = [answer.ttft_s for answer in done]
    gaps = np.concatenate([answer.gaps_s for answer in done])
    num_tokens = sum(answer.num_tokens for answer in done)
    return Summary(
        ttft_p50_s=float(np.quantile(ttfts, 0.5)),
        ttft_p99_s=float(np.quantile(ttfts, 0.99)),
        gap_p50_s=float(np.quantile(gaps, 0.5)),
        gap_p99_s=float(np.quantile(gaps, 0.99)),
        goodput_per_s=num_good / took_s,
        good_share=num_good / len(answers),
        num_failed=len(answers) - len(done),
        tokens_per_s=num_tokens / took_s,
        events_per_token=(len(gaps) + len(done)) / num_tokens,
        late_p99_s=float(np.quantile([answer.late_s for answer in done], 0.99)),
    )
