"""Where models are computed, and what a device is given when nobody says. By rules: only free memory is measured."""

from __future__ import annotations

import structlog
import torch

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_worker.kernels import gpu
from octavo_worker.models.base import AUTO, CPU, CUDA

log = structlog.get_logger(__name__)

DEVICES = (AUTO, CPU, CUDA)

TOKENS_PER_THREAD, MAX_BATCH_TOKENS = 128, 512
# A guess, not measured: some tens of milliseconds of a model of 8 billion parameters on a GPU of today.
GPU_BATCH_TOKENS = 2048
CPU_PROMPT_TOKENS_BESIDE_DECODE, GPU_PROMPT_TOKENS_BESIDE_DECODE = 32, 512
CPU_KV_BYTES = 1 << 30
# Of what is free when the weights are there; the rest is for activations and recorded steps.
GPU_KV_SHARE = 0.85


def choose_device(asked: str) -> str:
    """Cpu or cuda. auto takes cuda where torch finds a GPU that the kernels run on.

    Raises InvalidArgument for another name, FailedPrecondition, with all reasons, for a GPU that is not there.
    """
    if asked not in DEVICES:
        raise InvalidArgument(f"there is no device {asked!r}", hint=f"known: {', '.join(DEVICES)}")
    if asked == CPU:
        return CPU
    reasons = gpu.reasons_against()
    if asked == CUDA:
        if reasons:
            raise FailedPrecondition(
                f"no model can be computed on a GPU here: {'; '.join(reasons)}", hint="set OCTAVO_WORKER_DEVICE=cpu"
            )
        return CUDA
    # Whoever wants Triton's interpreter says cuda.
    if torch.cuda.is_available() and not reasons:
        return CUDA
    log.info("device.no_gpu", reasons=reasons)
    return CPU


def default_batch_tokens(num_threads: int, max_sequences: int, device: str = CPU) -> int:
    """Most tokens of a step: what the device computes in a fraction of a second with a small model.

    A step cannot be interrupted: whoever comes, or cancels a long prompt, waits for its end. Larger steps compute
    hardly more tokens a second. On a CPU it is what so many threads compute in about a quarter of a second.
    """
    tokens = GPU_BATCH_TOKENS if device == CUDA else min(TOKENS_PER_THREAD * num_threads, MAX_BATCH_TOKENS)
    return max(tokens, max_sequences)


def default_prompt_tokens_beside_decode(device: str) -> int:
    """Most prompt tokens of a step in which anything decodes: they delay every other sequence's next token."""
    return GPU_PROMPT_TOKENS_BESIDE_DECODE if device == CUDA else CPU_PROMPT_TOKENS_BESIDE_DECODE


def default_kv_bytes(device: torch.device) -> int:
    """Memory for keys and values; on a GPU to be asked for when the weights are there."""
    if device.type != CUDA:
        return CPU_KV_BYTES
    num_free, _ = torch.cuda.mem_get_info(device)
    return int(num_free * GPU_KV_SHARE)
