"""A plan as plain JSON values. The names are the contract: units are in them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from octavo_common.plan.report import Plan
from octavo_common.plan.roofline import StepCost


def plan_json(plan: Plan) -> dict[str, Any]:
    """All figures of a plan. Memory and costs are of one device; bytes, operations and seconds as the names say."""
    question, weights = plan.question, plan.weights
    return {
        "model": {**question.shape.to_json(), "num_parameters": question.shape.num_parameters},
        "device": {
            "name": question.device.name,
            "memory_bytes": round(question.device.memory_bytes),
            "bytes_per_s": plan.bandwidth,
            "flops_per_s": plan.peak,
            "ridge_flops_per_byte": plan.ridge,
        },
        "precision": question.stored.name,
        "kv_format": question.kv.name,
        "tensor_parallel": question.tensor_parallel,
        "num_prompt_tokens": question.num_prompt_tokens,
        "num_output_tokens": question.num_output_tokens,
        "batch": question.batch,
        "block_size": question.block_size,
        "weight_bytes": {
            "total": weights.total,
            "layers": weights.layers,
            "embedding": weights.embedding,
            "head": weights.head,
        },
        "memory": asdict(plan.memory),
        "least_tensor_parallel": plan.least_tensor_parallel,
        "prefill": step_json(plan.prefill),
        "decode": step_json(plan.decode),
        "decode_context": plan.decode_context,
        "decode_by_batch": [step_json(cost) for cost in plan.decode_by_batch],
        "ridge_batch": plan.ridge_batch,
        "request_s": plan.request_s,
        "notes": list(plan.notes),
    }


def step_json(cost: StepCost) -> dict[str, Any]:
    """The figures of one step."""
    return {
        "batch": cost.batch,
        "num_tokens": cost.num_tokens,
        "flops": cost.flops,
        "bytes": cost.num_bytes,
        "flops_per_byte": cost.intensity,
        "bound": cost.bound,
        "compute_s": cost.compute_s,
        "memory_s": cost.memory_s,
        "time_s": cost.time_s,
        "tokens_per_s": cost.tokens_per_s,
    }
