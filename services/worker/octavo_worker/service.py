"""WorkerService: reads job logs and step records for gateways. Starts, ends and cancels nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID

from octavo.v1 import pool_pb2, worker_pb2, worker_pb2_grpc
from octavo_common.errors import InvalidArgument, Unavailable
from octavo_common.prefix import tokens_digest
from octavo_worker import convert, poolview
from octavo_worker.engine.snapshot import Snapshot
from octavo_worker.joblog import Gate, JobElsewhere, JobLog, LogBook, PrefixDiffers
from octavo_worker.records import Records

# A step may be long; an engine that has crashed answers never.
POOL_WAIT_S = 4.0


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """A closed stream is no cancellation: jobs end by their row alone."""

    def __init__(
        self, *, book: LogBook, gate: Gate, records: Records, look: Callable[[], Future[Snapshot]], arrival_s: float
    ) -> None:
        """``look`` asks the engine for its pool. ``arrival_s``: how long a stream may be ahead of its job."""
        self._look = look
        self._book = book
        self._gate = gate
        self._records = records
        self._arrival_s = arrival_s

    async def Stream(self, request: worker_pb2.StreamRequest, context: Any) -> AsyncIterator[worker_pb2.StreamResponse]:
        """Send the job's tokens from an index on, then its end. Answers are apart, each in messages of its own."""
        if request.first_token < 0 or any(other.first_token < 0 for other in request.others):
            raise InvalidArgument("first_token is negative", param="first_token")
        job_id = _uuid(request.job_id)
        log = await self._book.arrival(job_id, request.fence, timeout_s=self._arrival_s)
        if len(request.others) >= log.num_choices:
            raise InvalidArgument(f"the job has {log.num_choices} answers", param="others")
        num_sent = [request.first_token, *(other.first_token for other in request.others)]
        digests = [request.prefix_digest, *(other.prefix_digest for other in request.others)]
        for choice, digest in enumerate(digests):
            await _same_beginning(log, choice, num_sent[choice], digest)
        num_sent += [0] * (log.num_choices - len(num_sent))
        while True:
            changed = log.changed
            if log.gone is not None:
                raise JobElsewhere(f"job {job_id} left this worker: {log.gone}", hint="read the row")
            end = log.end
            pieces = [log.read(first, choice) for choice, first in enumerate(num_sent)]
            if end is not None:
                # Committed under the fence: that it is ours needs no lease any more. The end goes with the first
                # answer.
                for piece in pieces[1:]:
                    if not piece.is_empty:
                        yield convert.stream_response(piece)
                yield convert.stream_response(pieces[0], end)
                return
            pieces = [piece for piece in pieces if piece.token_ids]
            if not pieces:
                await changed.wait()
            elif not self._gate.is_open:
                await self._gate.wait_open()
            else:
                for piece in pieces:
                    yield convert.stream_response(piece)
                    num_sent[piece.choice] += len(piece.token_ids)

    async def GetRecords(self, request: worker_pb2.GetRecordsRequest, context: Any) -> worker_pb2.GetRecordsResponse:
        """Return the records of the last steps."""
        records = self._records.after(request.after_step)
        return worker_pb2.GetRecordsResponse(records=[convert.step_record(record) for record in records])

    async def GetPool(self, request: pool_pb2.GetPoolRequest, context: Any) -> pool_pb2.GetPoolResponse:
        """Return who holds which block, after the step that runs now."""
        try:
            async with asyncio.timeout(POOL_WAIT_S):
                snapshot = await asyncio.wrap_future(self._look())
        except TimeoutError as error:
            raise Unavailable("the engine is in a long step", hint="ask again") from error
        # Beside the event loop: a large pool takes some milliseconds.
        view = await asyncio.to_thread(poolview.view, snapshot)
        return pool_pb2.GetPoolResponse(pool=convert.pool(view))


async def _same_beginning(log: JobLog, choice: int, num_tokens: int, digest: bytes) -> None:
    """Wait until an answer has as many tokens as the reader, and compare. Raises PrefixDiffers, JobElsewhere."""
    ids = log.ids_of(choice)
    while True:
        changed = log.changed
        if len(ids) >= num_tokens:
            break
        if log.gone is not None:
            raise JobElsewhere(f"job {log.job_id} left this worker: {log.gone}", hint="read the row")
        if log.end is not None:
            break
        await changed.wait()
    if len(ids) < num_tokens or tokens_digest(ids[:num_tokens]) != digest:
        raise PrefixDiffers(f"job {log.job_id} has other tokens here before token {num_tokens}")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is no job id", param="job_id") from error
