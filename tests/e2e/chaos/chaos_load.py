"""What clients do while things break: streams through both gateways, and jobs that nobody reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chaos_cluster import Cluster

import octavo

TOPICS = (
    "the capital of France", "how a steam engine works", "why the sky is blue", "the rules of chess", "baking bread",
    "the moons of Jupiter", "a river that meets the sea", "sorting a list of numbers", "the first printed books",
    "how bees find their way", "building a bridge", "the history of tea", "what a prime number is", "a walk at night",
    "the work of a glass blower", "growing tomatoes", "the speed of light", "a letter to a friend", "spring tides",
    "folding a sheet of paper", "the sound of a violin", "an old lighthouse", "learning to swim", "a market in autumn",
)  # fmt: skip


# Tokens that were on their way when something broke still arrive.
JUST_AFTER_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. Without a stream nobody reads it before its end."""

    prompt: str
    parameters: dict[str, Any]
    streams: bool = True


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a request, as its client saw it."""

    ask: Ask
    job_id: str = ""
    token_ids: tuple[int, ...] = ()
    error: Exception | None = None
    # (monotonic time, number of tokens so far) of every chunk.
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    def pause_after(self, moment_s: float) -> float:
        """The longest time without a token that began before or just after a moment, and ended after it."""
        times = [at for at, _ in self.arrivals]
        pauses = [b - max(a, moment_s) for a, b in pairwise(times) if b > moment_s and a < moment_s + JUST_AFTER_S]
        return max(pauses, default=0.0)


def asks(*, num_streams: int = 20, num_jobs: int = 4, max_tokens: int = 64) -> list[Ask]:
    """Greedy and seeded requests in turn, with prompts of different lengths."""
    made: list[Ask] = []
    for index in range(num_streams + num_jobs):
        topic = TOPICS[index % len(TOPICS)]
        prompt = " ".join([f"Here is what there is to say about {topic}, part {index}."] * (1 + index % 4))
        sampling: dict[str, Any] = {"temperature": 0.0}
        if index % 2:
            sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1000 + index}
        made.append(
            Ask(
                prompt=prompt,
                parameters={"max_tokens": max_tokens, "ignore_eos": True, **sampling},
                streams=index < num_streams,
            )
        )
    return made


Fault = Callable[[], Awaitable[None]]


class Load:
    """Runs requests at once, and breaks something when they are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.outcomes: list[Outcome] = []

    async def run(self, requests: Sequence[Ask], fault: Fault | None = None, *, at_part: float = 0.25) -> list[Outcome]:
        """Send all requests; when that part of all streamed tokens has come, cause the fault. Returns the outcomes."""
        addresses = self._cluster.addresses
        # Every client has its own first gateway, and the others to go to.
        clients = [
            octavo.AsyncClient(addresses[i:] + addresses[:i], api_key=self._cluster.key())
            for i in range(len(addresses))
        ]
        self.outcomes = [Outcome(ask=ask) for ask in requests]
        try:
            tasks = [
                asyncio.create_task(self._one(clients[i % len(clients)], outcome))
                for i, outcome in enumerate(self.outcomes)
            ]
            if fault is not None:
                await self._until_part(at_part, tasks)
                await fault()
            await asyncio.gather(*tasks)
        finally:
            for client in clients:
                await client.close()
        return self.outcomes

    async def _until_part(self, part: float, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Some requests may end before: what runs on a worker that was just restarted comes later than the rest."""
        total = sum(o.ask.parameters["max_tokens"] for o in self.outcomes if o.ask.streams)
        while sum(o.arrivals[-1][1] for o in self.outcomes if o.arrivals) < part * total:
            errors = [o.error for o in self.outcomes if o.error]
            assert not errors, errors
            assert not all(task.done() for task in tasks), "all have ended, with too few tokens"
            await asyncio.sleep(0.01)

    async def _one(self, client: octavo.AsyncClient, outcome: Outcome) -> None:
        ask = outcome.ask
        try:
            if ask.streams:
                stream = client.generate(ask.prompt, **ask.parameters)
                async for chunk in stream:
                    outcome.job_id = stream.job_id
                    outcome.arrivals.append((time.monotonic(), chunk.first_token + len(chunk.token_ids)))
                outcome.job_id, outcome.token_ids = stream.job_id, stream.token_ids
            else:
                outcome.job_id = (await client.submit(ask.prompt, **ask.parameters)).id
                job = await client.wait(outcome.job_id, timeout_s=120)
                if job.failure is not None:
                    raise AssertionError(f"{job.failure.code}: {job.failure.message}")
                outcome.token_ids = job.result.token_ids if job.result else ()
        except Exception as error:
            outcome.error = error
