"""Names the worker of a new job where there is nothing to choose: its model has one, and a connection to it stands.

Only a proposal: the statement that makes the job assigns it where the rules of placement allow it, and queues it
elsewhere. Which of several workers is best, and who goes first when jobs wait, is the scheduler's business alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo_common.jobs.model import Job, JobState, OwnedJob, Principal, ProcessRecord
from octavo_gateway.models import Catalogue
from octavo_gateway.workers import WorkerPool


class Direct:
    """Proposes workers to acceptance, and tells streams where their job is."""

    def __init__(self, catalogue: Catalogue, workers: WorkerPool) -> None:
        self._catalogue = catalogue
        self._workers = workers

    async def worker_for(self, principal: Principal, model_digest: str) -> ProcessRecord | None:
        """The worker that a new job of the model may be given to at once, or None.

        A connection that stands is a sign of life that is newer than any heartbeat: a worker that has died a moment ago
        would cost the job a loss.
        """
        if principal.limits.max_running is not None:
            return None
        worker = _alone(await self._catalogue.workers()).get(model_digest)
        return worker if worker is not None and self._workers.is_connected(worker.address) else None

    async def connect(self) -> None:
        """Connect to the workers that are alone with their model."""
        for worker in _alone(await self._catalogue.workers()).values():
            self._workers.is_connected(worker.address)


class NoDirect:
    """Leaves all jobs to the scheduler."""

    async def worker_for(self, principal: Principal, model_digest: str) -> ProcessRecord | None:
        """None."""
        return None

    async def connect(self) -> None:
        """Nothing to connect to."""


def _alone(workers: Iterable[ProcessRecord]) -> dict[str, ProcessRecord]:
    """The workers that are the only one of their model that takes jobs, by the model's digest."""
    by_digest: dict[str, list[ProcessRecord]] = {}
    for worker in workers:
        if worker.alive and not worker.draining and worker.card is not None:
            by_digest.setdefault(worker.card.digest, []).append(worker)
    return {digest: found[0] for digest, found in by_digest.items() if len(found) == 1}


def row_of(job: Job, worker: ProcessRecord | None) -> OwnedJob | None:
    """What its row says about a job that was assigned to the worker as it was made; None if it was not."""
    if worker is None or job.state is not JobState.ASSIGNED or job.worker_id != worker.id:
        return None
    return OwnedJob(
        id=job.id,
        state=job.state,
        fence=job.fence,
        stream_owner=job.stream_owner,
        worker_id=job.worker_id,
        worker_address=worker.address,
        worker_alive=True,
        cancel_requested=job.cancel_requested,
        result=None,
        error=None,
    )
