"""Why a job cannot run here, or did not, as what its row says. Pure."""

from __future__ import annotations

from octavo_common.errors import OctavoError, PromptTooLong, Status
from octavo_common.jobs.model import Claimed, Job
from octavo_common.jobs.spec import GenerationSpec, JobFailure
from octavo_common.jobs.transitions import DEADLINE
from octavo_worker.engine.types import Delta


def readable_spec(job: Job) -> tuple[GenerationSpec, JobFailure | None]:
    """What the job asks for; if nobody can read it, nothing, and the failure."""
    try:
        return GenerationSpec.from_json(dict(job.payload)), None
    except (TypeError, KeyError, ValueError) as error:
        nothing = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=0, max_tokens=0)
        return nothing, JobFailure(code="BAD_PAYLOAD", message=f"the job cannot be read: {error}")


def refusal(claimed: Claimed, *, max_sequence_tokens: int) -> JobFailure | None:
    """Why the job can never run here."""
    job = claimed.job
    if claimed.deadline_in_s is not None and claimed.deadline_in_s <= 0:
        return DEADLINE
    if job.kind != "generation":
        return JobFailure(code="UNKNOWN_KIND", message=f"a worker runs no jobs of kind {job.kind!r}")
    if len(job.prompt_ids) >= max_sequence_tokens:
        return failure_of(PromptTooLong(num_tokens=len(job.prompt_ids), limit=max_sequence_tokens))
    return None


def failure_of(error: OctavoError) -> JobFailure:
    """An error of ours, as it was raised."""
    return JobFailure(
        code=error.code, message=error.message, hint=error.hint, status=error.status.name, param=error.param or ""
    )


def failure_of_engine(delta: Delta) -> JobFailure:
    """The engine has refused the request, or failed on it."""
    if delta.refusal:
        return JobFailure(code=delta.refusal, message=f"{delta.error}", status=Status.INVALID_ARGUMENT.name)
    return JobFailure(code="ENGINE_FAILED", message=f"the model failed on this request: {delta.error}")
