"""Turns messages of planning and of pools into values. Pure."""

from __future__ import annotations

from octavo.parsing import seconds
from octavo.planning import ModelPlan, PlanChoices, PlanStep
from octavo.pools import Pool, PoolSequence
from octavo.v1 import plan_pb2, pool_pb2


def model_plan(message: plan_pb2.ModelPlan) -> ModelPlan:
    """A whole plan."""
    return ModelPlan(
        model=message.model,
        device=message.device,
        precision=message.precision,
        kv_format=message.kv_format,
        tensor_parallel=message.tensor_parallel,
        num_prompt_tokens=message.num_prompt_tokens,
        num_output_tokens=message.num_output_tokens,
        num_parameters=message.num_parameters,
        context_length=message.context_length,
        total_weight_bytes=message.total_weight_bytes,
        weight_bytes=message.weight_bytes,
        device_bytes=message.device_bytes,
        reserve_bytes=message.reserve_bytes,
        kv_room_bytes=message.kv_room_bytes,
        kv_bytes_per_token=message.kv_bytes_per_token,
        kv_bytes_per_sequence=message.kv_bytes_per_sequence,
        num_sequences=message.num_sequences,
        least_tensor_parallel=message.least_tensor_parallel or None,
        peak=message.peak,
        bandwidth=message.bandwidth,
        ridge=message.ridge,
        prefill=plan_step(message.prefill),
        decode=plan_step(message.decode),
        decode_context=message.decode_context,
        decode_by_batch=tuple(plan_step(step) for step in message.decode_by_batch),
        ridge_batch=message.ridge_batch or None,
        request_s=seconds(message.request_time),
        notes=tuple(message.notes),
    )


def plan_step(message: plan_pb2.PlanStep) -> PlanStep:
    """What a step costs."""
    return PlanStep(
        batch=message.batch,
        num_tokens=message.num_tokens,
        flops=message.flops,
        num_bytes=message.num_bytes,
        intensity=message.intensity,
        bound=message.bound,
        time_s=seconds(message.time),
        tokens_per_s=message.tokens_per_second,
    )


def plan_choices(message: plan_pb2.PlanChoices) -> PlanChoices:
    """What can be planned for."""
    return PlanChoices(
        models=tuple(message.models),
        devices=tuple(message.devices),
        precisions=tuple(message.precisions),
        kv_formats=tuple(message.kv_formats),
    )


def pool(message: pool_pb2.Pool) -> Pool:
    """A pool and who holds its blocks."""
    return Pool(
        step=message.step,
        num_blocks=message.num_blocks,
        block_size=message.block_size,
        num_free_blocks=message.num_free_blocks,
        num_cached_blocks=message.num_cached_blocks,
        num_used_blocks=message.num_used_blocks,
        num_shared_blocks=message.num_shared_blocks,
        num_unused_slots=message.num_unused_slots,
        blocks_per_cell=message.blocks_per_cell,
        cell_used=tuple(message.cell_used),
        cell_cached=tuple(message.cell_cached),
        cell_shared=tuple(message.cell_shared),
        cell_owner=tuple(message.cell_owner),
        sequences=tuple(pool_sequence(sequence) for sequence in message.sequences),
        num_sequences_left_out=message.num_sequences_left_out,
        num_host_blocks=message.num_host_blocks,
        num_free_host_blocks=message.num_free_host_blocks,
    )


def pool_sequence(message: pool_pb2.PoolSequence) -> PoolSequence:
    """One sequence of a pool."""
    return PoolSequence(
        job_id=message.job_id,
        choice=message.choice,
        phase=message.phase,
        num_tokens=message.num_tokens,
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        num_blocks=message.num_blocks,
        num_shared_blocks=message.num_shared_blocks,
        blocks=tuple(message.blocks),
        num_host_blocks=message.num_host_blocks,
    )
