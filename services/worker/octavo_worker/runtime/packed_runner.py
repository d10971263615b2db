"""The forward pass by compiled kernels: one program of stages a step, over packed weights and a pool of bytes.

Every sum has a fixed order, so a token's logits are bit for bit the same whatever the batch, chunks and threads.
T fed tokens, S wanted positions, D hidden, I feed-forward, N query heads, G key-value heads, H head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_worker.attention.base import AttnBatch
from octavo_worker.kernels.attention_frame import PAGE
from octavo_worker.models.base import ModelConfig
from octavo_worker.models.layers import Rope
from octavo_worker.models.packed_weights import PackedWeights
from octavo_worker.runtime.arithmetic import Arithmetic
from octavo_worker.runtime.inputs import ForwardInputs
from octavo_worker.runtime.packed_program import Forward, Head
from octavo_worker.runtime.slices import cut_positions

_FEWEST_ROWS = 64
# Enough for a mean.
_TYPICAL_TOKENS = 64


class _Positions:
    """Rotations by position. A table made once: the same position always has the same numbers, in any company."""

    _CHUNK = 1024

    def __init__(self, config: ModelConfig) -> None:
        self._rope = Rope(config.rope)
        self._by_length = config.needs_prompt_lengths
        self._table = np.zeros((0, config.rope.dim // 2, 2), np.float32)

    def __call__(self, inputs: ForwardInputs) -> NDArray[np.float32]:
        """Cosine and sine ``[T, P, 2]`` of each token."""
        if self._by_length:
            return self._rotations(inputs.positions_T, inputs.prompt_lengths_T)
        positions = inputs.positions_T.numpy()
        while len(self._table) <= positions.max():
            start = len(self._table)
            chunk = self._rotations(torch.arange(start, start + self._CHUNK), None)
            self._table = np.concatenate((self._table, chunk))
        return self._table[positions]

    def _rotations(self, positions_T: Tensor, lengths_T: Tensor | None) -> NDArray[np.float32]:
        return torch.view_as_real(self._rope.table(positions_T, lengths_T).squeeze(1)).contiguous().numpy()


class PackedRunner:
    """A model in packed weights with its pool of keys and values. Not for several threads at once."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        weights: PackedWeights,
        arithmetic: Arithmetic,
        kv: Tensor,
        num_threads: int,
        refine: Callable[[PackedWeights, list[int]], PackedWeights] | None = None,
        max_logits_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """``kv`` is a pool of bytes, each block as many as the arithmetic's attention says.

        ``refine`` gives weights that are more exact in some layers: it is asked to for those that make massive
        activations.
        """
        self._config = config
        self._weights = weights
        self._arithmetic = arithmetic
        self._kv = kv
        self._num_threads = num_threads
        self._rows_at_once = max(1, max_logits_bytes // (4 * config.vocab_size))
        self._positions = _Positions(config)
        self._key_means: NDArray[np.float32] | None = None
        if arithmetic.attention.mixes_keys:
            self._key_means, massive = _look_at_typical(config, weights, arithmetic, num_threads)
            if refine is not None:
                self._weights = refine(weights, massive)
        self._forward = self._make_forward(_FEWEST_ROWS)
        self._head = self._make_head(min(_FEWEST_ROWS, self._rows_at_once))

    def forward(self, inputs: ForwardInputs) -> Tensor:
        """Hidden states ``[T, D]``, overwritten by the next call; writes the tokens' keys and values into the pool."""
        num_tokens = inputs.tokens_T.shape[0]
        if num_tokens > self._forward.num_tokens:
            self._forward = self._make_forward(_grown(self._forward.num_tokens, num_tokens))
        self._forward.begin(inputs.tokens_T.numpy(), self._positions(inputs), inputs.attention)
        self._forward.program.run(num_tokens, self._num_threads)
        return torch.from_numpy(self._forward.hidden[:num_tokens])

    def logits(self, hidden_TD: Tensor, counts_R: list[int], wanted_S: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of the wanted positions as (rows, ``[S, V]``), in slices of bounded bytes that cut no row apart."""
        for rows, positions in cut_positions(counts_R, self._rows_at_once):
            num_wanted = positions.stop - positions.start
            if num_wanted > self._head.num_rows:
                self._head = self._make_head(_grown(self._head.num_rows, num_wanted))
            yield rows, self._head(hidden_TD[wanted_S[positions]], self._num_threads)

    def poison(self, blocks: list[int]) -> None:
        """Fill blocks with what is NaN as a float of any width, so that a wrong mask shows."""
        self._kv[torch.tensor(blocks, dtype=torch.int64)] = 255

    def _make_forward(self, num_tokens: int) -> Forward:
        return Forward(
            self._config,
            self._weights,
            self._arithmetic,
            self._key_means,
            self._kv,
            num_tokens=num_tokens,
            threads=self._num_threads,
        )

    def _make_head(self, num_rows: int) -> Head:
        return Head(self._config, self._weights, self._arithmetic, num_rows=num_rows, threads=self._num_threads)


def _look_at_typical(
    config: ModelConfig, weights: PackedWeights, arithmetic: Arithmetic, num_threads: int
) -> tuple[NDArray[np.float32], list[int]]:
    """What the model makes of some arbitrary tokens, the same at every start.

    Returns the means of their keys ``[layers, G, H]``, and the layers that make massive activations of them.
    """
    means = np.zeros((config.num_layers, config.num_kv_heads, config.head_dim), np.float32)
    one_block = arithmetic.attention.block_bytes(config.num_layers, config.num_kv_heads, config.head_dim)
    kv = torch.zeros(_TYPICAL_TOKENS // PAGE, one_block, dtype=torch.uint8)
    forward = Forward(config, weights, arithmetic, means, kv, num_tokens=_TYPICAL_TOKENS, threads=num_threads)
    positions = np.arange(_TYPICAL_TOKENS)
    # Spread over the vocabulary by the golden ratio.
    tokens = (positions * 2654435761 % config.vocab_size).astype(np.int64)
    rope = Rope(config.rope)
    lengths = torch.full((_TYPICAL_TOKENS,), _TYPICAL_TOKENS) if config.needs_prompt_lengths else None
    rotations = torch.view_as_real(rope.table(torch.from_numpy(positions), lengths).squeeze(1)).contiguous().numpy()
    tables_RB = np.arange(_TYPICAL_TOKENS // PAGE, dtype=np.int32)[None]
    count = np.array([_TYPICAL_TOKENS], np.int32)
    batch = AttnBatch(starts_R=count * 0, num_tokens_R=count, tables_RB=tables_RB, slots_T=positions)
    forward.begin(tokens, rotations, batch)
    done, massive, was_massive = 0, list[int](), False
    for layer, last in enumerate(forward.keys_after):
        forward.program.run(_TYPICAL_TOKENS, num_threads, slice(done, last))
        means[layer] = forward.keys(_TYPICAL_TOKENS).mean(axis=0)
        # What the layer before left.
        is_massive = forward.has_massive(_TYPICAL_TOKENS)
        if is_massive and not was_massive and layer:
            massive.append(layer - 1)
        done, was_massive = last, is_massive
    return means, massive


def _grown(now: int, needed: int) -> int:
    while now < needed:
        now *= 2
    return now
