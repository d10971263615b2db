"""What fits: bytes of keys and values, and how many sequences a device holds beside the weights."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_common.errors import InvalidArgument
from octavo_common.plan.devices import Device
from octavo_common.plan.formats import KvFormat, WeightBytes
from octavo_common.plan.shape import ModelShape

BLOCK_SIZE = 16


def kv_bytes_per_token(shape: ModelShape, kv: KvFormat, *, tensor_parallel: int = 1) -> int:
    """Bytes that one token's keys and values take on one device: ``2 L k (D value_bytes + scale_bytes)``.

    ``k = K / T`` heads lie on each of T devices; with more devices than heads each holds one, several the same.
    """
    heads = -(-shape.num_kv_heads // tensor_parallel)
    return round(2 * shape.num_layers * heads * (shape.head_dim * kv.value_bytes + kv.scale_bytes))


def kv_bytes_per_sequence(shape: ModelShape, kv: KvFormat, num_tokens: int, *, tensor_parallel: int = 1) -> int:
    """Bytes of a sequence's keys and values on one device, without what its last block leaves unused."""
    return num_tokens * kv_bytes_per_token(shape, kv, tensor_parallel=tensor_parallel)


def check_tensor_parallel(shape: ModelShape, tensor_parallel: int) -> None:
    """Raise InvalidArgument unless every device gets the same number of query heads, with their keys and values."""
    if not splits(shape, tensor_parallel):
        possible = ", ".join(str(n) for n in range(1, shape.num_heads + 1) if splits(shape, n))
        raise InvalidArgument(
            f"{shape.num_heads} attention heads over {shape.num_kv_heads} key-value heads cannot be split evenly "
            f"among {tensor_parallel} devices",
            hint=f"possible: {possible}",
            param="tensor_parallel",
        )


def splits(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether the heads can be shared out evenly."""
    if tensor_parallel < 1 or shape.num_heads % tensor_parallel:
        return False
    return shape.num_kv_heads % tensor_parallel == 0 or tensor_parallel % shape.num_kv_heads == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """One device's memory: ``reserve + weights + blocks``. All figures are of one device."""

    device_bytes: int
    # Kept free for the runtime, activations and graphs.
    reserve_bytes: int
    weight_bytes: int
    # What is left for keys and values; below 0 the weights do not fit.
    kv_room_bytes: int
    kv_bytes_per_token: int
    # Of the sequence that was asked about: its tokens, and its whole blocks.
    kv_bytes_per_sequence: int
    blocks_per_sequence: int
    block_bytes: int
    num_blocks: int
    # Sequences of that length at once.
    num_sequences: int


def plan_memory(
    shape: ModelShape,
    weights: WeightBytes,
    kv: KvFormat,
    device: Device,
    *,
    num_tokens: int,
    reserve: float,
    tensor_parallel: int = 1,
    block_size: int = BLOCK_SIZE,
) -> MemoryPlan:
    """Share out a device's memory.

    ``room = memory (1 - reserve) - weights / T``; ``blocks = floor(room / block bytes)``;
    ``sequences = floor(blocks / ceil(tokens / block size))``.
    """
    token_bytes = kv_bytes_per_token(shape, kv, tensor_parallel=tensor_parallel)
    on_device = -(-weights.total // tensor_parallel)
    reserved = round(device.memory_bytes * reserve)
    room = round(device.memory_bytes) - reserved - on_device
    block_bytes = token_bytes * block_size
    num_blocks = max(0, room) // block_bytes
    blocks_each = -(-num_tokens // block_size)
    return MemoryPlan(
        device_bytes=round(device.memory_bytes),
        reserve_bytes=reserved,
        weight_bytes=on_device,
        kv_room_bytes=room,
        kv_bytes_per_token=token_bytes,
        kv_bytes_per_sequence=num_tokens * token_bytes,
        blocks_per_sequence=blocks_each,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        num_sequences=num_blocks // blocks_each,
    )


def least_tensor_parallel(
    shape: ModelShape,
    weights: WeightBytes,
    kv: KvFormat,
    device: Device,
    *,
    num_tokens: int,
    reserve: float,
    block_size: int = BLOCK_SIZE,
) -> int | None:
    """Fewest devices that hold the weights and one such sequence; None if there is no such number."""
    for count in range(1, shape.num_heads + 1):
        if splits(shape, count):
            plan = plan_memory(
                shape,
                weights,
                kv,
                device,
                num_tokens=num_tokens,
                reserve=reserve,
                tensor_parallel=count,
                block_size=block_size,
            )
            if plan.num_sequences:
                return count
    return None
