"""One fault, one round: the load runs, something breaks, everything is checked. For the tests and the soak alike."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos_checks import all_exact, check_ended_once, check_tokens, prompt_ids, restart_delays
from chaos_cluster import Cluster
from chaos_faults import Faults, kill_whoever_runs
from chaos_load import Ask, Load, Outcome

import octavo

DEADLY_REQUEST = "deadly_request"
NUM_LOSSES = 3


@dataclass(slots=True, kw_only=True)
class RoundResult:
    """What one round showed. ``troubles`` is empty when all that must hold held."""

    fault: str
    troubles: list[str] = field(default_factory=list)
    num_jobs: int = 0
    num_ties: int = 0
    wall_s: float = 0.0
    # Of streams whose worker died and whose gateway lived: the time until another one ran their jobs, and the time
    # without a token. What lies between is computing: prompts and tokens so far, of all of them at once.
    moved_s: list[float] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    # Of jobs without a stream whose worker died: the time until another one ran them.
    restarts_s: list[float] = field(default_factory=list)
    # The longest time without a token of any stream.
    longest_pause_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


class Rounds:
    """Rounds against one platform, all compared with one undisturbed run on it."""

    def __init__(self, cluster: Cluster, requests: list[Ask], *, model: Path) -> None:
        self._cluster = cluster
        self._requests = requests
        self._model = model
        self._load = Load(cluster)
        self._faults = Faults(cluster)
        began_s = time.monotonic()
        self._undisturbed = asyncio.run(self._load.run(requests))
        self.undisturbed_s = time.monotonic() - began_s
        troubles = check_ended_once(cluster, self._undisturbed)
        assert not troubles, troubles
        # From nothing to a token, with all requests at once: what a resumed stream may take on a busy machine too.
        self.slowest_start_s = max(o.arrivals[0][0] for o in self._undisturbed if o.arrivals) - began_s
        self._prompts = prompt_ids(cluster, self._undisturbed)
        self.exact = all_exact(cluster)

    def run(self, fault: str) -> RoundResult:
        """Run one round, and wait until the platform is whole again."""
        result, began_s = RoundResult(fault=fault, num_jobs=len(self._requests)), time.monotonic()
        if fault == DEADLY_REQUEST:
            outcomes = asyncio.run(self._with_deadly_request(result))
        else:
            outcomes = asyncio.run(self._load.run(self._requests, getattr(self._faults, fault)))
            self._measure(result, outcomes)
        result.wall_s = time.monotonic() - began_s
        result.troubles += check_ended_once(self._cluster, outcomes)
        compared = check_tokens(self._undisturbed, outcomes, self._prompts, model=self._model, exact=self.exact)
        result.troubles += compared.troubles
        result.num_ties = compared.num_ties
        self._cluster.wait_ready()
        return result

    def _measure(self, result: RoundResult, outcomes: list[Outcome]) -> None:
        struck, by_id = self._faults.struck, {o.job_id: o for o in outcomes}
        result.pauses_s = [by_id[j].pause_after(struck.at_s) for j in struck.streamed if j in by_id]
        streams = [o for o in outcomes if o.ask.streams]
        result.longest_pause_s = max(o.pause_after(struck.at_s) for o in streams)
        for jobs, delays in ((struck.streamed, result.moved_s), (struck.unstreamed, result.restarts_s)):
            if jobs:
                delays += restart_delays(self._cluster, jobs, struck.at_database).values()

    async def _with_deadly_request(self, result: RoundResult) -> list[Outcome]:
        """A request that brings down every worker that computes it fails alone, after three losses."""
        # So long that it dies in its prompt: with tokens between two losses it would be no killer.
        prompt = "fold the sheet into eight leaves " * 600

        async def fault() -> None:
            cluster = self._cluster
            async with octavo.AsyncClient(cluster.addresses, api_key=cluster.key()) as client:
                stream = client.generate(prompt, max_tokens=8, temperature=0.0)
                await stream.start()
                reading = asyncio.create_task(stream.wait())
                num_kills = await kill_whoever_runs(cluster, stream.job_id)
                try:
                    await reading
                except octavo.AbortedError as error:
                    if error.code != "WORKER_LOST":
                        result.troubles.append(f"the deadly request ended with {error.code}: {error}")
                else:
                    result.troubles.append("the deadly request came to a good end")
                if num_kills != NUM_LOSSES:
                    result.troubles.append(f"the deadly request brought down {num_kills} workers, not {NUM_LOSSES}")

        return await self._load.run(self._requests, fault)
