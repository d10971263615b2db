"""Speaks with workers: one pooled channel per address, token streams and step records.

Turns the ways in which a stream can break into three answers, and knows nothing of what follows from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc
import structlog

from octavo.v1 import worker_pb2_grpc
from octavo_common.errors import Unavailable
from octavo_common.rpc.errors import from_rpc_error
from octavo_gateway import convert
from octavo_gateway.channels import ChannelPool
from octavo_gateway.values import WorkerMessage

log = structlog.get_logger(__name__)

PROBE_TIMEOUT_S = 0.5
RECORDS_TIMEOUT_S = 5.0


class StreamBroken(Exception):
    """The connection is gone, or the worker closed the stream without an end. It may still answer."""


class JobElsewhere(Exception):
    """The worker does not have the job (any more) under this fence."""


class PrefixDiffers(Exception):
    """The worker has other tokens before the index than the caller."""


@dataclass(slots=True, eq=False)
class WorkerStream:
    """One call of WorkerService.Stream. `cancel` ends the iteration with StreamBroken."""

    call: Any
    _cancelled: bool = field(default=False)

    def cancel(self) -> None:
        """End the call; the iteration sees a broken stream."""
        self._cancelled = True
        self.call.cancel()

    async def messages(self) -> AsyncIterator[WorkerMessage]:
        """Yield the worker's messages; the last one has an end. Raises StreamBroken, JobElsewhere or PrefixDiffers."""
        try:
            async for message in self.call:
                yield convert.worker_message(message)
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cancelled and not (task and task.cancelling()):
                raise StreamBroken("left for another worker") from None
            raise
        finally:
            # A stream that is only left goes on at the worker.
            self.call.cancel()


class WorkerPool(ChannelPool):
    """Channels to workers by address."""

    @contextmanager
    def stream(
        self, address: str, *, job_id: UUID, fence: int, prefix: Sequence[Sequence[int]]
    ) -> Iterator[WorkerStream]:
        """Open a job's stream after the tokens of `prefix`, which has those of each answer.

        May be called before the worker has the job.
        """
        request = convert.stream_request(job_id, fence, prefix)
        with self.use(address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            yield WorkerStream(stub.Stream(request))

    async def records(self, address: str, after_step: int) -> Sequence[Any]:
        """The worker's records of its last steps, as messages that are passed on unread. Raises Unavailable."""
        with self._answering(address) as stub:
            answer = await stub.GetRecords(convert.records_request(after_step), timeout=RECORDS_TIMEOUT_S)
            return answer.records

    async def pool(self, address: str) -> Any:
        """How the worker's pool stands, as a message that is passed on unread. Raises Unavailable."""
        with self._answering(address) as stub:
            answer = await stub.GetPool(convert.pool_request(), timeout=RECORDS_TIMEOUT_S)
            return answer.pool

    @contextmanager
    def _answering(self, address: str) -> Iterator[Any]:
        """A stub of the worker; what it says instead of an answer becomes Unavailable."""
        with self.use(address) as channel:
            try:
                yield worker_pb2_grpc.WorkerServiceStub(channel)
            except grpc.aio.AioRpcError as error:
                cause = from_rpc_error(error)
                raise Unavailable(
                    f"the worker does not answer: {cause.message}", hint="it may be restarting"
                ) from error

    async def answers(self, address: str) -> bool:
        """Whether something listens at the address. Says no at once when the process is gone and its machine is not."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True


def _translated(error: grpc.aio.AioRpcError) -> Exception:
    code = error.code()
    if code is grpc.StatusCode.ABORTED or code is grpc.StatusCode.NOT_FOUND:
        return JobElsewhere(error.details())
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PrefixDiffers(error.details())
    if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        # For example UNAUTHENTICATED: worth a look by somebody, and no reason to lose the job.
        log.warning("worker.stream_refused", status=code.name, details=error.details())
    return StreamBroken(error.details())
