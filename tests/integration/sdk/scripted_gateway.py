"""A real gRPC server that plays a gateway from a script: it breaks, repeats, skips and refuses as told.

The job's true tokens live in ``Platform``, which several gateways share, as they share the job table in earnest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from octavo.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc, jobs_pb2, jobs_pb2_grpc, plan_pb2, pool_pb2

TOKENS = [11, 12, 13, 14, 15, 16, 17, 18]


def text_of(ids: list[int]) -> str:
    return "".join(f"<{i}>" for i in ids)


class Platform:
    """The jobs, and everything that clients have asked of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}  # by idempotency key
        self.states: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []  # (gateway, rpc)
        self.resumed_with: list[list[int]] = []
        self.asked: list[gateway_pb2.Generation] = []
        self.lock = threading.Lock()
        self.cancelled = threading.Event()

    def accept(self, generation: gateway_pb2.Generation) -> tuple[str, bool]:
        with self.lock:
            self.asked.append(generation)
            key = generation.idempotency_key or f"none-{len(self.jobs)}"
            created = key not in self.jobs
            job_id = self.jobs.setdefault(key, f"job-{len(self.jobs)}")
            self.states.setdefault(job_id, jobs_pb2.JOB_STATE_RUNNING)
            return job_id, created


class Gateway(
    gateway_pb2_grpc.GenerationServiceServicer,
    gateway_pb2_grpc.ModelServiceServicer,
    gateway_pb2_grpc.FleetServiceServicer,
    jobs_pb2_grpc.JobServiceServicer,
):
    """Plays one script entry a streaming call: a list of steps. Without one it serves the job to its end.

    Steps: "accept"; (first, last) sends tokens; "finish"; "hang" waits until the client leaves; a grpc.StatusCode ends
    the call with it; "end" ends it without `finished`.
    """

    def __init__(self, name: str, platform: Platform, *scripts: list[object]) -> None:
        self.name = name
        self.platform = platform
        self.scripts = deque(scripts)
        self.unary_failures: deque[grpc.StatusCode] = deque()
        self.metadata: list[dict[str, object]] = []
        self.deadlines: list[float | None] = []
        self._server: grpc.Server | None = None
        self.address = ""

    def start(self, address: str = "127.0.0.1:0") -> Gateway:
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        for add in (
            gateway_pb2_grpc.add_GenerationServiceServicer_to_server,
            gateway_pb2_grpc.add_ModelServiceServicer_to_server,
            gateway_pb2_grpc.add_FleetServiceServicer_to_server,
            jobs_pb2_grpc.add_JobServiceServicer_to_server,
        ):
            add(self, server)
        self.address = f"127.0.0.1:{server.add_insecure_port(address)}"
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _seen(self, rpc: str, context: grpc.ServicerContext) -> None:
        self.platform.calls.append((self.name, rpc))
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())

    def _unary(self, rpc: str, context: grpc.ServicerContext) -> None:
        self._seen(rpc, context)
        if self.unary_failures:
            context.abort(self.unary_failures.popleft(), "scripted")

    def _play(
        self, job_id: str, created: bool, have: int, context: grpc.ServicerContext
    ) -> Iterator[gateway_pb2.GenerationEvent]:
        script = self.scripts.popleft() if self.scripts else ["accept", (have, len(TOKENS)), "finish"]
        for step in script:
            if step == "accept":
                yield gateway_pb2.GenerationEvent(
                    accepted=gateway_pb2.Accepted(job_id=job_id, model="m", num_prompt_tokens=3, created=created)
                )
            elif step == "finish":
                usage = common_pb2.Usage(completion_tokens=len(TOKENS), seed=5)
                n = self.platform.asked[-1].n if self.platform.asked else 1
                ends = [common_pb2.ChoiceEnd(finish_reason=common_pb2.FINISH_REASON_LENGTH)] * (n if n > 1 else 0)
                yield gateway_pb2.GenerationEvent(
                    finished=gateway_pb2.Finished(
                        finish_reason=common_pb2.FINISH_REASON_LENGTH, usage=usage, choices=ends
                    )
                )
            elif step == "hang":
                gone = threading.Event()
                context.add_callback(gone.set)
                gone.wait(20)
                return
            elif step == "end":
                return
            elif isinstance(step, grpc.StatusCode):
                context.abort(step, "scripted")
            elif step == "cancelled":
                abort_rich(context, grpc.StatusCode.CANCELLED, "CANCELLED", "the job was cancelled")
            else:
                first, last = step
                ids = TOKENS[first:last]
                yield gateway_pb2.GenerationEvent(
                    tokens=gateway_pb2.TokenChunk(first_token=first, token_ids=ids, text=text_of(ids))
                )

    def Generate(self, request, context):
        self._seen("Generate", context)
        job_id, created = self.platform.accept(request.generation)
        for event in self._play(job_id, created, 0, context):
            yield gateway_pb2.GenerateResponse(event=event)

    def ResumeGeneration(self, request, context):
        self._seen("ResumeGeneration", context)
        self.platform.resumed_with.append(list(request.token_ids))
        assert request.job_id in self.platform.states
        for event in self._play(request.job_id, False, len(request.token_ids), context):
            yield gateway_pb2.ResumeGenerationResponse(event=event)

    def SubmitGeneration(self, request, context):
        self._unary("SubmitGeneration", context)
        job_id, created = self.platform.accept(request.generation)
        return gateway_pb2.SubmitGenerationResponse(job_id=job_id, created=created)

    def GetJob(self, request, context):
        self._unary("GetJob", context)
        if request.id not in self.platform.states:
            abort_rich(context, grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND", f"there is no job {request.id!r}", "look")
        return jobs_pb2.GetJobResponse(job=jobs_pb2.Job(id=request.id, state=self.platform.states[request.id]))

    def CancelJob(self, request, context):
        self._unary("CancelJob", context)
        self.platform.states[request.id] = jobs_pb2.JOB_STATE_CANCELLED
        self.platform.cancelled.set()
        return jobs_pb2.CancelJobResponse(job=jobs_pb2.Job(id=request.id, state=jobs_pb2.JOB_STATE_CANCELLED))

    def RetryJob(self, request, context):
        self._unary("RetryJob", context)
        return jobs_pb2.RetryJobResponse(job=jobs_pb2.Job(id=f"{request.id}-again", state=jobs_pb2.JOB_STATE_QUEUED))

    def WatchJob(self, request, context):
        self._seen("WatchJob", context)
        script = self.scripts.popleft() if self.scripts else [jobs_pb2.JOB_STATE_SUCCEEDED]
        for step in script:
            if isinstance(step, grpc.StatusCode):
                context.abort(step, "scripted")
            elif step == "hang":
                gone = threading.Event()
                context.add_callback(gone.set)
                gone.wait(20)
                return
            else:
                yield jobs_pb2.WatchJobResponse(job=jobs_pb2.Job(id=request.id, state=step))

    def ListJobs(self, request, context):
        self._unary("ListJobs", context)
        start = int(request.page_token or 0)
        ids = [f"job-{n}" for n in range(start, min(start + min(request.page_size, 3), 7))]
        token = str(start + len(ids)) if start + len(ids) < 7 else ""
        return jobs_pb2.ListJobsResponse(
            jobs=[jobs_pb2.Job(id=i, state=jobs_pb2.JOB_STATE_QUEUED) for i in ids], next_page_token=token
        )

    def ListJobEvents(self, request, context):
        self._unary("ListJobEvents", context)
        return jobs_pb2.ListJobEventsResponse(events=[jobs_pb2.JobEvent(event="queued", fence=1, details={"a": "b"})])

    def ListModels(self, request, context):
        self._unary("ListModels", context)
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.Model(name="m", num_workers=1)])

    def PlanModel(self, request, context):
        self._unary("PlanModel", context)
        return plan_pb2.PlanModelResponse(
            plan=plan_pb2.ModelPlan(model=request.model, device=request.device, ridge_batch=request.batch),
            choices=plan_pb2.PlanChoices(models=["m"], devices=["H200"]),
        )

    def ListWorkers(self, request, context):
        self._unary("ListWorkers", context)
        return gateway_pb2.ListWorkersResponse(workers=[gateway_pb2.Worker(id="w", alive=not request.include_dead)])

    def GetWorkerRecords(self, request, context):
        self._unary("GetWorkerRecords", context)
        return gateway_pb2.GetWorkerRecordsResponse()

    def GetWorkerPool(self, request, context):
        self._unary("GetWorkerPool", context)
        owner = pool_pb2.PoolSequence(job_id="j", choice=1, phase="running", blocks=[2, 0])
        return pool_pb2.GetWorkerPoolResponse(
            pool=pool_pb2.Pool(
                num_blocks=3, blocks_per_cell=1, cell_used=[1, 0, 1], cell_owner=[0, -1, 0], sequences=[owner]
            )
        )


def abort_rich(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, message: str, hint: str = "") -> None:
    detail = Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="octavo", metadata={"hint": hint}))
    status = status_pb2.Status(code=getattr(code_pb2, code.name), message=message, details=[detail])
    context.abort_with_status(rpc_status.to_status(status))
