"""A model is refused only by a picture of the workers that was begun after the request came."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from octavo_common.errors import ModelNotFound
from octavo_common.jobs.model import ProcessRecord
from octavo_common.jobs.spec import ModelCard
from octavo_gateway.models import Catalogue


class TickingClock:
    """Every look is a millisecond later than the one before."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def monotonic(self) -> float:
        return next(self._ticks) / 1000

    def time(self) -> float:
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Workers:
    """The table of processes, and how often it was read."""

    def __init__(self) -> None:
        self.records: list[ProcessRecord] = []
        self.num_reads = 0

    async def list(self, role: str | None = None, max_age_s: float | None = None) -> list[ProcessRecord]:
        self.num_reads += 1
        records = list(self.records)
        await asyncio.sleep(0)
        return records

    def register(self, model: str, numerics_id: str = "n", *, exact: bool = False) -> UUID:
        card = ModelCard(
            name=model, digest=model * 2, family="llama", numerics_id=numerics_id, tokenizer_digest="t",
            max_sequence_tokens=64, context_length=64, block_size=16, num_blocks=4, vocab_size=100,
            exact=exact,
        )  # fmt: skip
        self.records.append(
            ProcessRecord(
                id=uuid4(), role="worker", address="a:1", http_address="", metrics_address="", host="h", pid=1,
                lease_s=15.0, draining=False, card=card, capacity={}, load={}, started_at=datetime.now(UTC),
                heartbeat_age_s=0.0, alive=True,
            )
        )  # fmt: skip
        return self.records[-1].id


async def test_a_model_that_registered_a_moment_ago_is_found_though_the_picture_is_fresh() -> None:
    workers = Workers()
    catalogue = Catalogue(workers, TickingClock())
    assert await catalogue.workers() == []
    workers.register("small")
    assert (await catalogue.find("")).name == "small"
    workers.register("large")
    assert (await catalogue.find("large")).name == "large"


async def test_a_model_that_is_known_costs_no_read() -> None:
    workers = Workers()
    workers.register("small")
    catalogue = Catalogue(workers, TickingClock())
    for _ in range(10):
        await catalogue.find("small")
    assert workers.num_reads == 1


async def test_many_requests_for_a_model_that_is_not_there_share_their_reads() -> None:
    workers = Workers()
    catalogue = Catalogue(workers, TickingClock())
    await catalogue.workers()
    answers = await asyncio.gather(*(catalogue.find("none") for _ in range(50)), return_exceptions=True)
    assert all(isinstance(answer, ModelNotFound) for answer in answers)
    assert workers.num_reads <= 3


async def test_refusals_name_what_is_served() -> None:
    workers = Workers()
    workers.register("small")
    workers.register("large")
    catalogue = Catalogue(workers, TickingClock())
    with pytest.raises(ModelNotFound) as error:
        await catalogue.find("")
    assert "large, small" in error.value.hint


async def test_two_workers_agree_where_both_are_exact_and_compute_alike() -> None:
    workers = Workers()
    one, same = workers.register("m", "int8", exact=True), workers.register("m", "int8", exact=True)
    other, loose = workers.register("m", "avx512", exact=True), workers.register("m", "int8")
    another_model = workers.register("k", "int8", exact=True)
    catalogue = Catalogue(workers, TickingClock())
    assert await catalogue.agree(one, same) and await catalogue.agree(one, one)
    for worker in (other, loose, another_model, uuid4()):
        assert not await catalogue.agree(one, worker)
        assert not await catalogue.agree(worker, one)


async def test_a_worker_whose_row_is_gone_still_agrees_until_it_is_forgotten() -> None:
    workers = Workers()
    one = workers.register("m", exact=True)
    catalogue = Catalogue(workers, TickingClock(), remember_s=3.0)
    await catalogue.workers()
    workers.records.clear()
    same = workers.register("m", exact=True)
    # The picture is at most a second old, and a look takes a millisecond.
    for _ in range(1100):
        await catalogue.workers()
    assert await catalogue.agree(one, same)
    for _ in range(4000):
        await catalogue.workers()
    assert not await catalogue.agree(one, same)
