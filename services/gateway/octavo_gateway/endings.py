"""How a stream ends other than well, as errors for its readers. Pure."""

from __future__ import annotations

from uuid import UUID

from octavo_common.errors import Cancelled, FailedPrecondition, Internal, OctavoError, StreamDiverged
from octavo_common.jobs.spec import JobFailure
from octavo_gateway.convert import failure_error


def without_result(job_id: UUID, failure: JobFailure | None) -> OctavoError:
    """The job failed, or was cancelled (None)."""
    if failure is None:
        return Cancelled(f"job {job_id} was cancelled")
    return failure_error(failure)


def expired(job_id: UUID) -> OctavoError:
    """The job has ended, and its content is gone."""
    return FailedPrecondition(
        f"the content of job {job_id} is not kept any more", code="CONTENT_EXPIRED", hint="ask again"
    )


def forgotten(job_id: UUID) -> OctavoError:
    """There is no row of the job any more."""
    return FailedPrecondition(f"job {job_id} is not kept any more", code="CONTENT_EXPIRED", hint="ask again")


def diverged(job_id: UUID) -> StreamDiverged:
    """The job has other tokens than were sent."""
    return StreamDiverged(
        f"job {job_id} went on with other tokens than this stream has sent",
        hint="its result is in the job: read it by its id",
    )


def broken(job_id: UUID) -> OctavoError:
    """A fault of ours; the log has its place."""
    return Internal("the stream failed", hint=f"the job goes on: read job {job_id}")


def restarted(job_id: UUID) -> StreamDiverged:
    """The job begins anew, and nothing says that it will choose the tokens that were sent."""
    return StreamDiverged(
        f"job {job_id} lost its worker after tokens were sent, and begins anew: it may choose others",
        code="STREAM_RESTARTED",
        hint="its result will be in the job: wait for it by its id",
    )
