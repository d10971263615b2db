"""Builds the calls of planning and of pools as values, as ``calls`` does for all others. Pure; sends nothing."""

from __future__ import annotations

from google.protobuf.message import Message

from octavo import parsing_fleet
from octavo.calls import Call
from octavo.fields import build
from octavo.planning import ModelPlan, PlanChoices
from octavo.pools import Pool
from octavo.v1 import plan_pb2, pool_pb2

_PLAN_MODEL = "/octavo.v1.ModelService/PlanModel"


def plan_model(
    model: str,
    *,
    device: str,
    precision: str = "",
    kv_format: str = "",
    num_prompt_tokens: int = 0,
    num_output_tokens: int = 0,
    batch: int = 0,
    tensor_parallel: int = 0,
    reserve: float | None = None,
    memory_bytes: float = 0,
    bandwidth: float = 0,
    peak: float = 0,
) -> Call[ModelPlan]:
    """Ask what a model needs of a device."""

    def parse(answer: Message) -> ModelPlan:
        assert isinstance(answer, plan_pb2.PlanModelResponse)
        return parsing_fleet.model_plan(answer.plan)

    figures = build(plan_pb2.DeviceFigures, memory_bytes=memory_bytes, bandwidth=bandwidth, peak=peak)
    return Call(
        path=_PLAN_MODEL,
        request=build(
            plan_pb2.PlanModelRequest,
            model=model,
            device=device,
            own_figures=figures,
            precision=precision,
            kv_format=kv_format,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            batch=batch,
            tensor_parallel=tensor_parallel,
            reserve=reserve,
        ),
        response=plan_pb2.PlanModelResponse,
        parse=parse,
    )


def plan_choices() -> Call[PlanChoices]:
    """Ask what can be planned for by name."""

    def parse(answer: Message) -> PlanChoices:
        assert isinstance(answer, plan_pb2.PlanModelResponse)
        return parsing_fleet.plan_choices(answer.choices)

    return Call(path=_PLAN_MODEL, request=plan_pb2.PlanModelRequest(), response=plan_pb2.PlanModelResponse, parse=parse)


def worker_pool(worker_id: str) -> Call[Pool]:
    """Read how a worker's pool of blocks stands."""

    def parse(answer: Message) -> Pool:
        assert isinstance(answer, pool_pb2.GetWorkerPoolResponse)
        return parsing_fleet.pool(answer.pool)

    return Call(
        path="/octavo.v1.FleetService/GetWorkerPool",
        request=build(pool_pb2.GetWorkerPoolRequest, worker_id=worker_id),
        response=pool_pb2.GetWorkerPoolResponse,
        parse=parse,
    )
