"""The whole answer to "what does this model need of that device": memory, roofline, ceilings by batch, remarks."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_common.errors import InvalidArgument
from octavo_common.plan.devices import Device
from octavo_common.plan.formats import KvFormat, WeightBytes, WeightFormat, weight_bytes
from octavo_common.plan.memory import (
    BLOCK_SIZE,
    MemoryPlan,
    check_tensor_parallel,
    least_tensor_parallel,
    plan_memory,
)
from octavo_common.plan.roofline import Deployment, StepCost, decode_cost, prefill_cost, ridge_batch
from octavo_common.plan.shape import ModelShape

# Of the memory of a device: what runtimes, activations and graphs usually take.
DEFAULT_RESERVE = 0.1
MAX_TOKENS = 1 << 24
MAX_BATCH = 1 << 20
# Bytes, bytes a second and operations a second of a device.
_MOST = 1e18
# Rows of the table of ceilings.
_MAX_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    shape: ModelShape
    device: Device
    stored: WeightFormat
    kv: KvFormat
    num_prompt_tokens: int = 1024
    num_output_tokens: int = 256
    batch: int = 1
    tensor_parallel: int = 1
    reserve: float = DEFAULT_RESERVE
    block_size: int = BLOCK_SIZE
    # Of a file whose tensors were counted; None computes them from the format.
    weights: WeightBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is answered. Costs and memory are of one of the devices."""

    question: Question
    weights: WeightBytes
    memory: MemoryPlan
    # Fewest devices that hold the weights and one sequence; None if no number does.
    least_tensor_parallel: int | None
    # Operations and bytes a second of one device.
    peak: float
    bandwidth: float
    # Operations a byte.
    ridge: float
    prefill: StepCost
    # In the middle of the output.
    decode: StepCost
    decode_context: int
    # Of the least batch that is bound by compute.
    ridge_batch: int | None
    # Powers of two up to what fits, and what fits.
    decode_by_batch: tuple[StepCost, ...]
    # What the figures do not say by themselves, in sentences.
    notes: tuple[str, ...]

    @property
    def request_s(self) -> float:
        """Least time of a request of the batch: its prompt, then its output but for the first token."""
        return self.prefill.time_s + (self.question.num_output_tokens - 1) * self.decode.time_s


def make_plan(question: Question) -> Plan:
    """Answer; raises InvalidArgument for numbers that make no sense."""
    _check(question)
    device = question.device
    weights = question.weights or weight_bytes(question.shape, question.stored)
    deployment = Deployment(
        shape=question.shape,
        stored=question.stored,
        weights=weights,
        kv=question.kv,
        device=device,
        tensor_parallel=question.tensor_parallel,
    )
    memory, least = _fit(question, weights)
    # The steps after the first token look at prompt + 1 to prompt + output - 1 tokens.
    context = question.num_prompt_tokens + max(1, question.num_output_tokens // 2)
    batches = batches_up_to(memory.num_sequences)
    return Plan(
        question=question,
        weights=weights,
        memory=memory,
        least_tensor_parallel=least,
        peak=device.peak(question.stored.arithmetic),
        bandwidth=device.bandwidth,
        ridge=deployment.ridge,
        prefill=prefill_cost(deployment, batch=question.batch, num_prompt_tokens=question.num_prompt_tokens),
        decode=decode_cost(deployment, batch=question.batch, context=context),
        decode_context=context,
        ridge_batch=ridge_batch(deployment, context=context),
        decode_by_batch=tuple(decode_cost(deployment, batch=batch, context=context) for batch in batches),
        notes=tuple(_notes(question, memory, least)),
    )


def _fit(question: Question, weights: WeightBytes) -> tuple[MemoryPlan, int | None]:
    """What is left for sequences of a prompt and its output, and the fewest devices that hold one."""
    num_tokens = question.num_prompt_tokens + question.num_output_tokens
    memory = plan_memory(
        question.shape,
        weights,
        question.kv,
        question.device,
        num_tokens=num_tokens,
        reserve=question.reserve,
        tensor_parallel=question.tensor_parallel,
        block_size=question.block_size,
    )
    least = least_tensor_parallel(
        question.shape,
        weights,
        question.kv,
        question.device,
        num_tokens=num_tokens,
        reserve=question.reserve,
        block_size=question.block_size,
    )
    return memory, least


def batches_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the largest that fits; 1 alone when none does."""
    powers = [1 << n for n in range(_MAX_ROWS) if 1 << n < most]
    return [*powers, most] if most > 0 else [1]


def _check(question: Question) -> None:
    bounds = {
        "num_prompt_tokens": (question.num_prompt_tokens, MAX_TOKENS),
        "num_output_tokens": (question.num_output_tokens, MAX_TOKENS),
        "batch": (question.batch, MAX_BATCH),
    }
    for name, (value, most) in bounds.items():
        if not 1 <= value <= most:
            raise InvalidArgument(f"{name} is {value}, and must be from 1 to {most}", param=name)
    if not 0 <= question.reserve < 1:
        raise InvalidArgument(f"reserve is {question.reserve}, and must be at least 0 and below 1", param="reserve")
    device = question.device
    # Written so that NaN fails, too.
    if not all(0 < figure <= _MOST for figure in (device.memory_bytes, device.bandwidth)):
        raise InvalidArgument("a device has more than 0 bytes of memory and of bandwidth, up to 10^18", param="device")
    if not all(0 < peak <= _MOST for peak in device.peaks.values()):
        raise InvalidArgument("a device does more than 0 operations a second, up to 10^18", param="device")
    check_tensor_parallel(question.shape, question.tensor_parallel)


def _notes(question: Question, memory: MemoryPlan, least: int | None) -> list[str]:
    shape, device = question.shape, question.device
    notes: list[str] = []
    num_tokens = question.num_prompt_tokens + question.num_output_tokens
    if num_tokens > shape.context_length:
        notes.append(f"{num_tokens} tokens are beyond the model's context of {shape.context_length}.")
    if memory.num_sequences == 0:
        what = "the weights do not fit" if memory.kv_room_bytes <= 0 else "no such sequence fits beside the weights"
        devices = f"{least} such devices hold them" if least else "no number of such devices does"
        if least == 1:
            devices = "one such device holds them"
        notes.append(f"On {_count(question.tensor_parallel, device.name)} {what}; {devices} with a sequence.")
    elif question.batch > memory.num_sequences:
        notes.append(f"A batch of {question.batch} does not fit: there is room for {memory.num_sequences} sequences.")
    if question.stored.arithmetic not in device.peaks:
        notes.append(f"{device.name} has no {question.stored.arithmetic} arithmetic: a wider one is counted.")
    if question.tensor_parallel > shape.num_kv_heads:
        times = question.tensor_parallel // shape.num_kv_heads
        notes.append(f"Each key-value head lies on {times} devices.")
    if question.tensor_parallel > 1:
        notes.append("What the devices send each other is not counted.")
    return notes


def _count(number: int, name: str) -> str:
    return f"one {name}" if number == 1 else f"{number} {name}"
