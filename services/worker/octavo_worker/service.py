"""WorkerService: reads job logs and step records for gateways. Starts, ends and cancels nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from octavo.v1 import worker_pb2, worker_pb2_grpc
from octavo_common.errors import InvalidArgument
from octavo_common.prefix import tokens_digest
from octavo_worker import convert
from octavo_worker.joblog import Gate, JobElsewhere, JobLog, LogBook, PrefixDiffers
from octavo_worker.records import Records


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """A closed stream is no cancellation: jobs end by their row alone."""

    def __init__(self, *, book: LogBook, gate: Gate, records: Records, arrival_s: float) -> None:
        """``arrival_s``: how long a stream may be ahead of its job."""
        self._book = book
        self._gate = gate
        self._records = records
        self._arrival_s = arrival_s

    async def Stream(self, request: worker_pb2.StreamRequest, context: Any) -> AsyncIterator[worker_pb2.StreamResponse]:
        """Send the job's tokens from an index on, then its end."""
        if request.first_token < 0:
            raise InvalidArgument("first_token is negative", param="first_token")
        job_id = _uuid(request.job_id)
        log = await self._book.arrival(job_id, request.fence, timeout_s=self._arrival_s)
        num_sent = request.first_token
        await _same_beginning(log, num_sent, request.prefix_digest)
        while True:
            changed = log.changed
            if log.gone is not None:
                raise JobElsewhere(f"job {job_id} left this worker: {log.gone}", hint="read the row")
            piece = log.read(num_sent)
            if log.end is not None:
                # Committed under the fence: that it is ours needs no lease any more.
                yield convert.stream_response(piece, log.end)
                return
            if not piece.token_ids:
                await changed.wait()
            elif not self._gate.is_open:
                await self._gate.wait_open()
            else:
                yield convert.stream_response(piece)
                num_sent += len(piece.token_ids)

    async def GetRecords(self, request: worker_pb2.GetRecordsRequest, context: Any) -> worker_pb2.GetRecordsResponse:
        """Return the records of the last steps."""
        records = self._records.after(request.after_step)
        return worker_pb2.GetRecordsResponse(records=[convert.step_record(record) for record in records])


async def _same_beginning(log: JobLog, num_tokens: int, digest: bytes) -> None:
    """Wait until the log has as many tokens as the reader, and compare. Raises PrefixDiffers, JobElsewhere."""
    while True:
        changed = log.changed
        if len(log.ids) >= num_tokens:
            break
        if log.gone is not None:
            raise JobElsewhere(f"job {log.job_id} left this worker: {log.gone}", hint="read the row")
        if log.end is not None:
            break
        await changed.wait()
    if len(log.ids) < num_tokens or tokens_digest(log.ids[:num_tokens]) != digest:
        raise PrefixDiffers(f"job {log.job_id} has other tokens here before token {num_tokens}")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is no job id", param="job_id") from error
