"""Clients that go away leave nothing behind: no block, no job, no task, no descriptor, no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_cluster import Cluster
from chaos_leaks import ENVIRON, STAGES, Leavers, kept_holdings, usual_holdings
from plugins_models import demo_model_path

__all__ = ["demo_model_path"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_WARM, NUM_LEAVERS = 6, 38
# Half a second on a quiet machine, which benchmarks/soak.py holds it to.
MAX_FREED_S = 2.5


@pytest.fixture(scope="module")
def cluster(demo_model_path: Path) -> Iterator[Cluster]:
    """One of everything, small enough to be filled."""
    with Cluster(model=demo_model_path, workers=1, gateways=1, schedulers=1, environ=ENVIRON) as cluster:
        yield cluster


def test_clients_that_disconnect_at_any_stage_leave_nothing_behind(cluster: Cluster) -> None:
    (worker,), (gateway,) = cluster.processes("worker"), cluster.processes("gateway")
    leavers = Leavers(cluster)
    for stage in STAGES:
        asyncio.run(leavers.run(stage, NUM_WARM))
    cluster.settle()
    before = [usual_holdings(process, cluster.database_port) for process in (worker, gateway)]
    departures = [asyncio.run(leavers.run(stage, NUM_LEAVERS)) for stage in STAGES]
    cluster.settle()
    after = [
        kept_holdings(process, cluster.database_port, usual)
        for process, usual in zip((worker, gateway), before, strict=True)
    ]
    for one in departures:
        print(one.stage, sorted(round(t, 3) for t in one.freed_s))
    assert [trouble for one in departures for trouble in one.troubles] == []
    assert max(one.p99_s for one in departures) < MAX_FREED_S
    assert [(old, new) for old, new in zip(before, after, strict=True) if new.kept_from(old)] == []
    assert cluster.query("select id from jobs where ended_at is null") == []
