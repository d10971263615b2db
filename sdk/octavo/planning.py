"""What planning returns: plain frozen values. Knows no protobuf. Times are floors, rates ceilings; see docs/plan.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """The least that a step costs on one device: operations, bytes, and which of the two takes longer."""

    batch: int
    num_tokens: int
    flops: float
    num_bytes: float
    # Operations a byte.
    intensity: float
    # ``compute`` or ``memory``.
    bound: str
    time_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What a model needs of a device, and what it can give at most. Bytes and rates are of one of the devices."""

    model: str
    device: str
    precision: str
    kv_format: str
    tensor_parallel: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_parameters: int
    context_length: int
    # Of all devices together.
    total_weight_bytes: int
    weight_bytes: int
    device_bytes: int
    reserve_bytes: int
    # Below 0 the weights do not fit.
    kv_room_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    num_sequences: int
    # Fewest devices that hold the weights and one sequence; None if no number does.
    least_tensor_parallel: int | None
    # Operations and bytes a second; operations a byte.
    peak: float
    bandwidth: float
    ridge: float
    prefill: PlanStep
    decode: PlanStep
    decode_context: int
    decode_by_batch: tuple[PlanStep, ...]
    # Least batch whose decode step is bound by compute; None if none is.
    ridge_batch: int | None
    request_s: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """What can be planned for by name; served models come first."""

    models: tuple[str, ...]
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    kv_formats: tuple[str, ...]
