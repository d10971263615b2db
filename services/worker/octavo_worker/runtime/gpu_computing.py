"""How a loaded model is computed on a GPU: attention by a backend, decode steps from recordings, kernels made ready.

Everything but the recorder runs in Triton's interpreter too. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog
import torch

from octavo_worker.attention.base import AttnBatch
from octavo_worker.kernels import gpu
from octavo_worker.kv.runs import copy_in_runs
from octavo_worker.models.base import CUDA, LoadedModel
from octavo_worker.runtime.computing import (
    BLOCK_SIZE,
    Computing,
    Resources,
    Runner,
    num_blocks_of,
    num_blocks_of_longest,
    select_attention,
    torch_version,
)
from octavo_worker.runtime.devices import default_kv_bytes
from octavo_worker.runtime.graphs import BUCKETS, CudaRecorder, GraphRunner, Rerun
from octavo_worker.runtime.inputs import ForwardInputs
from octavo_worker.runtime.memory import allocate_device_pool
from octavo_worker.runtime.runner import ModelRunner
from octavo_worker.verify.coupled import Coupled
from octavo_worker.verify.gpu import GpuVerifier

log = structlog.get_logger(__name__)

# Lengths of prompts that between them need every variant of the kernels.
_PROMPTS = (2, 4, 8, 16, 32, 64)


def compute_on_gpu(loaded: LoadedModel, resources: Resources) -> Computing:
    """Make the runner of a model whose weights are on the GPU. Raises as `computing.compute` does."""
    model, device = loaded.config, gpu.torch_device()
    dtype: torch.dtype = getattr(torch, model.dtype)
    # Sums of 16-bit products stay float32 when a product is split. (tf32 is off unless somebody turns it on.)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    attention, shape = select_attention(model, resources, CUDA)
    kv_bytes = default_kv_bytes(device) if resources.kv_bytes is None else resources.kv_bytes
    num_blocks = num_blocks_of(kv_bytes, model, dtype)
    pool = allocate_device_pool(shape(num_blocks), dtype, device, poison=resources.poison)
    runner: Runner = ModelRunner(model=loaded.model, attention=attention, kv=pool)
    if resources.records_decode and attention.recordable is not None:
        runner = GraphRunner(
            model=loaded.model,
            attention=attention.recordable,
            kv=pool,
            runner=runner,
            recorder=CudaRecorder() if device.type == "cuda" else Rerun(),
            max_blocks=num_blocks_of_longest(model, num_blocks),
        )
    if device.type == "cuda":
        warm_up(runner, max_rows=resources.max_sequences, max_tokens=model.context_length)
        log.info("gpu.warmed_up", gpu=torch.cuda.get_device_name(device), num_blocks=num_blocks)
    return Computing(
        runner=runner,
        pool=pool,
        copy=copy_in_runs,
        verifier=GpuVerifier(Coupled()),
        attention_backend=attention.name,
        numerics_id=f"{model.dtype}/{attention.name}-torch-{torch_version()}/{gpu.machine()}",
        exact=False,
    )


def warm_up(runner: Runner, *, max_rows: int, max_tokens: int, prompts: Sequence[int] = _PROMPTS) -> None:
    """Compile every kernel and record decode steps of short contexts, so that no request waits for it.

    Nothing is written into the pool. Longer contexts are recorded when they come, which takes no compiler.
    """
    for num_tokens in prompts:
        if num_tokens <= max_tokens:
            runner.forward(_blank([num_tokens]))
    largest = next((bucket for bucket in BUCKETS if bucket >= max_rows), BUCKETS[-1])
    # The largest first: those after it fit into the memory that it took between its inputs and its result.
    for bucket in sorted((bucket for bucket in BUCKETS if bucket <= largest), reverse=True):
        hidden_TD = runner.forward(_blank([1] * bucket))
        wanted_S = torch.arange(bucket)
        for _, logits_SV in runner.logits(hidden_TD, [1] * bucket, wanted_S):
            logits_SV.cpu()


def _blank(counts: list[int]) -> ForwardInputs:
    """Rows that begin at position 0, read the first block whatever it holds, and write nothing."""
    counts_R = np.array(counts, np.int32)
    positions_T = torch.from_numpy(np.concatenate([np.arange(count) for count in counts]))
    nothing = torch.empty(0, dtype=torch.int64)
    return ForwardInputs(
        tokens_T=torch.zeros_like(positions_T),
        positions_T=positions_T,
        prompt_lengths_T=torch.from_numpy(np.repeat(counts_R.astype(np.int64), counts_R)),
        attention=AttnBatch(
            starts_R=np.zeros(len(counts), np.int32),
            num_tokens_R=counts_R,
            tables_RB=np.zeros((len(counts), -(-max(counts) // BLOCK_SIZE)), np.int32),
            slots_T=np.full(len(positions_T), -1, np.int64),
        ),
        wanted_S=nothing,
        wanted_ids=(),
        wanted_rows=(),
        scored_S=nothing,
        scored_ids=(),
        scored_tokens=(),
    )
