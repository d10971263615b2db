"""What the gateway can do, for both rims: the gRPC servicers and the OpenAI routes call this and nothing else.

Knows neither protobuf nor HTTP. All errors are OctavoErrors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

from octavo_gateway.requests import OnDisconnect, ValidRequest
from octavo_gateway.values import AcceptedJob, Finish, ModelInfo, TokenPiece

if TYPE_CHECKING:
    from octavo_common.jobs.model import Job, JobState, Principal
    from octavo_common.text.tokenizer import Tokenizer


class GenerationApi(Protocol):
    """Acceptance, streams, jobs and models."""

    async def authenticate(self, key: str | None) -> Principal:
        """Find who a key belongs to (a bearer token without its scheme). Raises Unauthenticated."""
        ...

    async def accept(
        self,
        principal: Principal,
        request: ValidRequest,
        *,
        traceparent: str | None = None,
        deadline_s: float | None = None,
        streaming: bool = True,
    ) -> AcceptedJob:
        """Commit a request as a job: whatever happens now, it ends exactly once.

        A streaming job is owned by this gateway, and its stream must be read soon: without a reader it is treated as
        disconnected after a few seconds. ``deadline_s`` is the time that the caller's call has left. Raises
        ModelNotFound, PromptTooLong, InvalidArgument, QuotaExceeded, IdempotencyConflict, DeadlineExceeded.
        """
        ...

    def stream(self, accepted: AcceptedJob) -> AsyncGenerator[TokenPiece | Finish, None]:
        """Yield the job's tokens after those that the caller has, then one Finish.

        An async generator: closing it (or cancelling its reader) before the end is a disconnect and does what
        ``accepted.on_disconnect`` says. Raises the job's error (Cancelled, DeadlineExceeded, ...), StreamDiverged, or
        Unavailable when this gateway drains: the job goes on then, and `resume` at another gateway reads the rest.
        """
        ...

    def leave(self, accepted: AcceptedJob) -> None:
        """Say that the stream will not be read (any more): call it in the `finally` of whoever got an AcceptedJob.

        Closing a generator that was never begun runs nothing of it, so closing `stream` alone would leave its job to a
        timer of some seconds. After the stream's end nothing happens.
        """
        ...

    async def resume(
        self, principal: Principal, job_id: str, token_ids: Sequence[Sequence[int]], on_disconnect: OnDisconnect
    ) -> AcceptedJob:
        """Take a job's stream over for a caller that has ``token_ids`` of each answer, from the first on.

        Then read `stream`.
        """
        ...

    async def tokenizer(self, accepted: AcceptedJob) -> Tokenizer:
        """The tokenizer of the job's model, to name tokens by. Raises Unavailable."""
        ...

    async def job(self, principal: Principal, job_id: str) -> Job:
        """One job. Raises JobNotFound, also for another tenant's."""
        ...

    async def jobs(
        self, principal: Principal, *, states: Sequence[JobState], model: str, tenant: str, limit: int, after: str
    ) -> tuple[list[Job], bool]:
        """A page of jobs, newest first, and whether there are more. Raises InvalidArgument, PermissionDenied."""
        ...

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Ask a job to end; one that has ended is returned as it is."""
        ...

    async def models(self) -> list[ModelInfo]:
        """Models that live workers serve, and those that did a short time ago."""
        ...
