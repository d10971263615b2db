"""The blocking client. Knows no rules: what to send, retry and resume is decided in calls, retry and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from octavo import calls, calls_fleet, request
from octavo.builds import Builds
from octavo.clock import Clock, new_idempotency_key
from octavo.errors import OctavoError, UnavailableError, from_rpc_error, still_waiting
from octavo.fields import check_number
from octavo.planning import ModelPlan, PlanChoices
from octavo.pools import Pool
from octavo.retry import Patience, RetryPolicy, is_broken
from octavo.settings import resolve
from octavo.streams import StreamMachine
from octavo.values import Job, JobEvent, JobHandle, JobState, Model, StepRecord, Worker
from octavo.wire import TokenStream, Wire


class Jobs:
    """Reads and steers jobs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get(self, job_id: str) -> Job:
        """Read one job; raises NotFoundError."""
        return self._wire.unary(calls.get_job(job_id))

    def list(
        self, *, states: Sequence[JobState | str] = (), model: str = "", tenant: str = "", limit: int = 50
    ) -> list[Job]:
        """Read the newest jobs, without their results. ``tenant`` needs an admin key."""
        found: list[Job] = []
        token = ""
        while len(found) < limit:
            size = min(calls.MAX_PAGE, limit - len(found))
            page, token = self._wire.unary(
                calls.list_jobs(states=states, model=model, tenant=tenant, page_size=size, page_token=token)
            )
            found += page
            if not token:
                break
        return found

    def cancel(self, job_id: str) -> Job:
        """Ask a job to end; returns it as it is after that."""
        return self._wire.unary(calls.cancel_job(job_id))

    def retry(self, job_id: str) -> Job:
        """Queue a copy of an ended job and return the copy."""
        return self._wire.unary(calls.retry_job(job_id))

    def events(self, job_id: str) -> list[JobEvent]:
        """Read what happened to a job, oldest first."""
        return self._wire.unary(calls.job_events(job_id))

    def watch(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """Yield the job now and after each change until it has ended; survives its gateway.

        Raises DeadlineExceededError, code WAIT_TIMEOUT, after ``timeout_s``: the job goes on.
        """
        clock = self._wire.clock
        patience, last = Patience(self._wire.policy), None
        deadline_s = None if timeout_s is None else clock.monotonic() + check_number(timeout_s, "timeout_s")
        while True:
            remaining_s = None if deadline_s is None else max(0.001, deadline_s - clock.monotonic())
            failure: OctavoError = UnavailableError("the watch ended before the job", job_id=job_id)
            call = calls.watch_job(job_id)
            answers = self._wire.open(call, remaining_s)
            try:
                for answer in answers:
                    job = call.parse(answer)
                    patience.progress()
                    if job != last:
                        yield job
                    if job.state.ended:
                        return
                    last = job
            except grpc.RpcError as rpc_error:
                failure = from_rpc_error(rpc_error, job_id=job_id)
            finally:
                answers.cancel()
            if timeout_s is not None and failure.status == "DEADLINE_EXCEEDED" and not failure.told:
                raise still_waiting(job_id, timeout_s) from failure
            if not is_broken(failure):
                raise failure
            self._wire.move()
            clock.wait(patience.delay_s(failure, now_s=clock.monotonic(), jitter=clock.jitter()))


class Client:
    """A blocking client of one platform. Safe to share between threads; close it or use it as a context manager.

    ``address``: one or more ``host:port``, with commas or as a list; a later one takes over when one fails. Address and
    key default to OCTAVO_ADDRESS and OCTAVO_API_KEY. ``timeout_s`` bounds every call that is not a stream.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        metadata: Callable[[], Sequence[tuple[str, str]]] = tuple,
        credentials: grpc.ChannelCredentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        target = resolve(address, api_key)
        self._wire = Wire(
            target.addresses,
            target.api_key,
            timeout_s=timeout_s,
            policy=retry or RetryPolicy(),
            clock=clock or Clock(),
            metadata=metadata,
            credentials=credentials,
        )
        self.jobs = Jobs(self._wire)
        self.builds = Builds(self._wire)

    def generate(self, prompt: str | None = None, *, resumable: bool = True, **parameters: Any) -> TokenStream:
        """Ask for a generation and stream its tokens; see ``octavo.request.generation`` for the parameters.

        A resumable stream survives its connection and its gateway. One that is not is cancelled by the platform when
        its connection breaks.
        """
        if resumable and not parameters.get("idempotency_key"):
            parameters["idempotency_key"] = new_idempotency_key()
        built = request.generation(prompt, detach=resumable, **parameters)
        return TokenStream(self._wire, StreamMachine(built, policy=self._wire.policy, resumable=resumable))

    def attach(self, job_id: str, *, token_ids: Sequence[int] = ()) -> TokenStream:
        """Stream the tokens of a job that exists, after those that the caller has."""
        machine = StreamMachine(None, policy=self._wire.policy, resumable=True, job_id=job_id, token_ids=token_ids)
        return TokenStream(self._wire, machine)

    def submit(self, prompt: str | None = None, **parameters: Any) -> JobHandle:
        """Ask for a generation without a stream; takes the parameters of ``generate``."""
        if not parameters.get("idempotency_key"):
            parameters["idempotency_key"] = new_idempotency_key()
        return self._wire.unary(calls.submit(request.generation(prompt, detach=True, **parameters)))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Wait until a job has ended; returns it with its result or raises DeadlineExceededError."""
        for job in self.jobs.watch(job_id, timeout_s=timeout_s):
            if job.state.ended:
                return job
        raise UnavailableError("the watch ended before the job", job_id=job_id)

    def models(self) -> list[Model]:
        """List the models that live workers serve."""
        return self._wire.unary(calls.list_models())

    def plan(self, model: str, *, device: str, **parameters: Any) -> ModelPlan:
        """Ask what a model needs of a device; see ``octavo.calls_fleet.plan_model`` for the parameters."""
        return self._wire.unary(calls_fleet.plan_model(model, device=device, **parameters))

    def plan_choices(self) -> PlanChoices:
        """List what can be planned for by name."""
        return self._wire.unary(calls_fleet.plan_choices())

    def workers(self, *, include_dead: bool = False) -> list[Worker]:
        """List the workers whose heartbeat is fresh, or all."""
        return self._wire.unary(calls.list_workers(include_dead=include_dead))

    def worker_records(self, worker_id: str, after_step: int = 0) -> list[StepRecord]:
        """Read a worker's record of its recent steps (admin keys)."""
        return self._wire.unary(calls.worker_records(worker_id, after_step))

    def worker_pool(self, worker_id: str) -> Pool:
        """Read who holds which block of a worker's pool (admin keys)."""
        return self._wire.unary(calls_fleet.worker_pool(worker_id))

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
