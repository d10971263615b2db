"""What a step costs at least: operations, bytes, and which of the two bounds it.

A floor, not a forecast: every byte moves once, caches hold all activations, matrices and attention run at the peak,
and devices exchange nothing. Norms, rotary angles, softmax and sampling are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_common.plan.devices import Device
from octavo_common.plan.formats import Arithmetic, KvFormat, WeightBytes, WeightFormat
from octavo_common.plan.memory import kv_bytes_per_token
from octavo_common.plan.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model in its formats on its devices."""

    shape: ModelShape
    stored: WeightFormat
    weights: WeightBytes
    kv: KvFormat
    device: Device
    tensor_parallel: int = 1

    @property
    def ridge(self) -> float:
        """Operations a byte above which a device computes longer than it reads: ``peak / bandwidth``."""
        return self.device.peak(self.stored.arithmetic) / self.device.bandwidth

    @property
    def attention_peak(self) -> float:
        """Operations a second of attention: in float32 over float32 keys and values, else in 16 bits."""
        return self.device.peak(Arithmetic.FLOAT32 if self.kv.value_bytes == 4 else Arithmetic.BFLOAT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step on one of the devices."""

    # Sequences in the step.
    batch: int
    # Two to a multiply-add.
    flops: float
    num_bytes: float
    compute_s: float
    memory_s: float
    # New tokens (of the prompt, or generated) of all sequences.
    num_tokens: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.num_bytes

    @property
    def bound(self) -> str:
        """``compute`` or ``memory``: whichever takes longer."""
        return "compute" if self.compute_s > self.memory_s else "memory"

    @property
    def time_s(self) -> float:
        """The least time: both overlap entirely, the longer one remains."""
        return max(self.compute_s, self.memory_s)

    @property
    def tokens_per_s(self) -> float:
        """The most tokens a second."""
        return self.num_tokens / self.time_s


def attended_pairs(num_new: int, num_known: int, window: int | None) -> int:
    """(query, key) pairs of new tokens behind known ones, causal: ``sum min(position + 1, window)``.

    Positions are ``[num_known, num_known + num_new)``.
    """
    first, last = num_known + 1, num_known + num_new
    if window is None or last <= window:
        return (first + last) * num_new // 2
    if first >= window:
        return num_new * window
    within = window - first + 1
    return (first + window) * within // 2 + (num_new - within) * window


def prefill_cost(plan: Deployment, *, batch: int, num_prompt_tokens: int) -> StepCost:
    """Compute the prompts of ``batch`` sequences, S tokens each, in one step; each yields its first token.

    ``flops = B (2 S matrices + 2 V H + 4 L N D S (S + 1) / 2)``;
    ``bytes = layers + head + B S (embedding row + 2 KV of a token)``: written once, read once.
    """
    return _cost(plan, batch=batch, num_new=num_prompt_tokens, num_known=0)


def decode_cost(plan: Deployment, *, batch: int, context: int) -> StepCost:
    """Generate one token for each of ``batch`` sequences, each of which looks at C tokens, its last one included.

    ``flops = B (2 matrices + 2 V H + 4 L N D C)``; ``bytes = layers + head + B (embedding row + KV of C tokens + KV of
    the new one)``: weights are read once for all, keys and values by each for itself.
    """
    return _cost(plan, batch=batch, num_new=1, num_known=context - 1)


def _cost(plan: Deployment, *, batch: int, num_new: int, num_known: int) -> StepCost:
    shape, share = plan.shape, plan.tensor_parallel
    matrix_flops = 2 * batch * (num_new * shape.matrix_parameters + shape.head_parameters) / share
    near, window = shape.window_layers, shape.sliding_window
    far = shape.num_layers - near
    pairs = far * attended_pairs(num_new, num_known, None) + near * attended_pairs(num_new, num_known, window)
    attention_flops = 4 * shape.num_heads * shape.head_dim * batch * pairs / share
    num_keys = num_known + num_new
    # Of a layer with a window the keys that the first new token sees, and those after them.
    num_seen = num_keys if window is None else min(num_keys, window + num_new - 1)
    num_moved = (far * num_keys + near * num_seen) / shape.num_layers + num_new
    kv_bytes = kv_bytes_per_token(shape, plan.kv, tensor_parallel=share) * num_moved
    row_bytes = shape.hidden * plan.stored.table_bytes / share
    num_bytes = plan.weights.per_step / share + batch * (num_new * row_bytes + kv_bytes)
    compute_s = matrix_flops / plan.device.peak(plan.stored.arithmetic) + attention_flops / plan.attention_peak
    return StepCost(
        batch=batch,
        flops=matrix_flops + attention_flops,
        num_bytes=num_bytes,
        compute_s=compute_s,
        memory_s=num_bytes / plan.device.bandwidth,
        num_tokens=batch * num_new,
    )


def ridge_batch(plan: Deployment, *, context: int) -> int | None:
    """The least batch whose decode step is bound by compute; None if reading keys and values always takes longer.

    Compute grows as ``B c``, memory as ``w + B m``: ``B > w / (c - m)``.
    """
    one, two = decode_cost(plan, batch=1, context=context), decode_cost(plan, batch=2, context=context)
    each_compute_s = two.compute_s - one.compute_s
    each_memory_s = two.memory_s - one.memory_s
    if each_compute_s <= each_memory_s:
        return None
    return int((one.memory_s - each_memory_s) / (each_compute_s - each_memory_s)) + 1
