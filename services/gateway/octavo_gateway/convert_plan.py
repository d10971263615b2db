"""Planning's messages to values, and values to messages. With ``convert`` the only module that handles messages."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import plan_pb2
from octavo_common.plan.report import Plan
from octavo_common.plan.roofline import StepCost
from octavo_gateway.planning import Choices, PlanRequest

# A Duration ends at about ten thousand years.
_MAX_S = 1e11


def plan_request(message: plan_pb2.PlanModelRequest) -> PlanRequest:
    """What was asked."""
    return PlanRequest(
        model=message.model,
        device=message.device,
        precision=message.precision,
        kv_format=message.kv_format,
        num_prompt_tokens=message.num_prompt_tokens,
        num_output_tokens=message.num_output_tokens,
        batch=message.batch,
        tensor_parallel=message.tensor_parallel,
        reserve=message.reserve if message.HasField("reserve") else None,
        memory_bytes=message.own_figures.memory_bytes,
        bandwidth=message.own_figures.bandwidth,
        peak=message.own_figures.peak,
    )


def plan_choices(found: Choices) -> plan_pb2.PlanChoices:
    """What can be asked for."""
    return plan_pb2.PlanChoices(
        models=found.models, devices=found.devices, precisions=found.precisions, kv_formats=found.kv_formats
    )


def model_plan(plan: Plan) -> plan_pb2.ModelPlan:
    """A whole plan."""
    question, memory = plan.question, plan.memory
    return plan_pb2.ModelPlan(
        model=question.shape.name,
        device=question.device.name,
        precision=question.stored.name,
        kv_format=question.kv.name,
        tensor_parallel=question.tensor_parallel,
        num_prompt_tokens=question.num_prompt_tokens,
        num_output_tokens=question.num_output_tokens,
        num_parameters=question.shape.num_parameters,
        context_length=question.shape.context_length,
        total_weight_bytes=plan.weights.total,
        weight_bytes=memory.weight_bytes,
        device_bytes=memory.device_bytes,
        reserve_bytes=memory.reserve_bytes,
        kv_room_bytes=memory.kv_room_bytes,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        kv_bytes_per_sequence=memory.kv_bytes_per_sequence,
        num_sequences=memory.num_sequences,
        least_tensor_parallel=plan.least_tensor_parallel or 0,
        peak=plan.peak,
        bandwidth=plan.bandwidth,
        ridge=plan.ridge,
        prefill=plan_step(plan.prefill),
        decode=plan_step(plan.decode),
        decode_context=plan.decode_context,
        decode_by_batch=[plan_step(cost) for cost in plan.decode_by_batch],
        ridge_batch=plan.ridge_batch or 0,
        request_time=_duration(plan.request_s),
        notes=plan.notes,
    )


def plan_step(cost: StepCost) -> plan_pb2.PlanStep:
    """What a step costs."""
    return plan_pb2.PlanStep(
        batch=cost.batch,
        num_tokens=cost.num_tokens,
        flops=cost.flops,
        num_bytes=cost.num_bytes,
        intensity=cost.intensity,
        bound=cost.bound,
        time=_duration(cost.time_s),
        tokens_per_second=cost.tokens_per_s,
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(min(seconds, _MAX_S) * 1e9))
    return duration
