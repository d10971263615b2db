"""Decode steps as recorded graphs: what a step launches is recorded once for a number of rows, then replayed.

A small model's decode step on a GPU is bound by launches: recorded, hundreds of them are one. A graph has fixed
addresses and grids, so batches are padded to buckets of rows and of context parts; the inputs are copied into the
graph's own tensors. Padding rows see no key and write nothing. Steps with anything but one token a row run as before.

The recorder is a port: on a CPU `Rerun` records nothing and runs the same work again, on the same fixed tensors, so all
of this is tested without a GPU. T fed tokens, R rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.attention.base import DecodeAttention, DecodePlan
from octavo_worker.models.base import Model
from octavo_worker.runtime.computing import Runner
from octavo_worker.runtime.inputs import ForwardInputs

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Work that can be done again; its result is always the same tensor."""

    result: Tensor
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records work on a device."""

    def record(self, work: Callable[[], Tensor]) -> Recording:
        """Record the work. It may run, more than once; it reads and writes fixed tensors only."""
        ...


class CudaRecorder:
    """CUDA graphs with one memory pool: graphs never run at the same time, so they may share what lies between."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor]) -> Recording:
        """Run it on a stream of its own, which compiles its kernels, then record it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return Recording(result=result, replay=graph.replay)


class Rerun:
    """Records nothing: a replay runs the work again and puts its result where the first one lies."""

    def record(self, work: Callable[[], Tensor]) -> Recording:
        """Run it once for the place of its result."""
        result = work()

        def replay() -> None:
            result.copy_(work())

        return Recording(result=result, replay=replay)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    tokens_T: Tensor
    positions_T: Tensor
    prompt_lengths_T: Tensor
    plan: DecodePlan
    recording: Recording


class GraphRunner:
    """Runs decode steps from recordings and everything else through another runner."""

    def __init__(
        self,
        *,
        model: Model,
        attention: DecodeAttention,
        kv: Tensor,
        runner: Runner,
        recorder: Recorder,
        max_blocks: int,
        buckets: Sequence[int] = BUCKETS,
    ) -> None:
        """`attention` is what the runner's backend offers for recording; `max_blocks` is the longest block table.

        Recordings are made when a bucket is first needed.
        """
        self._model = model
        self._attention = attention
        self._kv = kv
        self._runner = runner
        self._recorder = recorder
        self._max_blocks = max_blocks
        self._buckets = tuple(sorted(buckets))
        self._graphs: dict[tuple[int, int], _Graph] = {}

    @property
    def num_recordings(self) -> int:
        """Buckets that were recorded."""
        return len(self._graphs)

    def forward(self, inputs: ForwardInputs) -> Tensor:
        """Hidden states ``[T, D]``, valid until the next call; writes the tokens' keys and values into the pool."""
        batch = inputs.attention
        num_rows = len(batch.num_tokens_R)
        bucket = next((b for b in self._buckets if b >= num_rows), None)
        num_parts = self._attention.num_parts(batch)
        if bucket is None or num_parts is None:
            return self._runner.forward(inputs)
        num_parts = 1 << (num_parts - 1).bit_length()
        graph = self._graphs.get((bucket, num_parts))
        if graph is None:
            graph = self._graphs[bucket, num_parts] = self._record(bucket, num_parts)
        graph.plan.refill(batch)
        graph.tokens_T[:num_rows].copy_(inputs.tokens_T)
        graph.positions_T[:num_rows].copy_(inputs.positions_T)
        graph.prompt_lengths_T[:num_rows].copy_(inputs.prompt_lengths_T)
        with torch.inference_mode():
            graph.recording.replay()
        return graph.recording.result[:num_rows]

    def logits(self, hidden_TD: Tensor, counts_R: list[int], wanted_S: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of the wanted positions as (rows, ``[S, V]``), in slices of bounded bytes that cut no row apart."""
        return self._runner.logits(hidden_TD, counts_R, wanted_S)

    def poison(self, blocks: list[int]) -> None:
        """Fill blocks with NaN, so that a wrong mask shows."""
        self._runner.poison(blocks)

    def _record(self, num_rows: int, num_parts: int) -> _Graph:
        numbers_T = torch.zeros(num_rows, dtype=torch.int64, device=self._kv.device)
        tokens_T, positions_T, lengths_T = numbers_T, numbers_T.clone(), numbers_T.clone()
        plan = self._attention.padded_plan(num_rows=num_rows, num_blocks=self._max_blocks, num_parts=num_parts)
        window = self._model.config.window
        prompt_lengths_T = lengths_T if self._model.config.needs_prompt_lengths else None

        def attend(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor) -> Tensor:
            return self._attention.attend(q_TNH, k_TGH, v_TGH, self._kv, plan, layer, window(layer))

        def work() -> Tensor:
            return self._model.forward(tokens_T, positions_T, attend, prompt_lengths_T=prompt_lengths_T)

        with torch.inference_mode():
            recording = self._recorder.record(work)
        return _Graph(
            tokens_T=tokens_T,
            positions_T=positions_T,
            prompt_lengths_T=lengths_T,
            plan=plan,
            recording=recording,
        )
