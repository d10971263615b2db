"""Nothing that was accepted is lost, whatever dies: one round for each fault. benchmarks/soak.py runs many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_cluster import Cluster
from chaos_faults import Faults
from chaos_load import asks
from chaos_rounds import DEADLY_REQUEST, Rounds
from plugins_models import demo_model_path

__all__ = ["demo_model_path"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# A busy machine may take twice as long as it takes to begin everything from nothing; benchmarks/soak.py is strict.
MAX_PAUSE_S = 2.0
MAX_RESTART_S = Cluster.DEFAULT_LEASE_S + 3.0


@pytest.fixture(scope="module")
def rounds(demo_model_path: Path) -> Iterator[Rounds]:
    """Two workers, two gateways, two schedulers, and what they answer when nothing is wrong."""
    with Cluster(model=demo_model_path) as cluster:
        yield Rounds(cluster, asks(max_tokens=48), model=demo_model_path)


@pytest.mark.parametrize("fault", [*Faults.NAMES, DEADLY_REQUEST])
def test_every_job_ends_once_with_the_tokens_of_an_undisturbed_run(rounds: Rounds, fault: str) -> None:
    result = rounds.run(fault)
    print(result.to_json())
    assert result.troubles == []
    # The mode that `auto` takes where the processor multiplies bytes promises every bit: there nothing is excused.
    assert not (rounds.exact and result.num_ties)
    if fault == "worker_killed":
        assert max(result.moved_s) < MAX_PAUSE_S
        assert max(result.pauses_s) < max(MAX_PAUSE_S, 2 * rounds.slowest_start_s)
        assert all(restart_s < MAX_RESTART_S for restart_s in result.restarts_s)
