"""A decoder as programs of compiled stages, with the buffers between them. Knows no plan, no sequence, no arithmetic.

T fed tokens, S wanted positions, D hidden, I feed-forward, N query heads, G key-value heads, H head dim, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.tiles import cut_tiles, visible_lengths
from octavo_worker.kernels import attention_frame as frame
from octavo_worker.kernels.embedding import TOKENS
from octavo_worker.kernels.positions import ROTATIONS, place_stage
from octavo_worker.kernels.program import Program, Stage
from octavo_worker.kernels.quantize import norm_stage
from octavo_worker.models.base import ModelConfig
from octavo_worker.models.packed_weights import LayerWeights, LinearWeights, PackedWeights
from octavo_worker.runtime.arithmetic import Arithmetic


class Head:
    """Logits of some rows of hidden states."""

    def __init__(
        self, config: ModelConfig, weights: PackedWeights, arithmetic: Arithmetic, *, num_rows: int, threads: int
    ) -> None:
        self.num_rows = num_rows
        self._hidden = np.zeros((num_rows, config.hidden), np.float32)
        self._logits = np.zeros((num_rows, weights.head.padded_outputs), np.float32)
        self._rows = arithmetic.rows(num_rows, config.hidden, threads)
        product = self._rows.matmul(LinearWeights(matrix=weights.head), self._logits)
        self._program = Program([self._rows.take(self._hidden, weights.head), product])
        self._vocab_size = config.vocab_size

    def __call__(self, hidden_SD: Tensor, num_threads: int) -> Tensor:
        """Logits ``[S, V]``; overwritten by the next call."""
        num_rows = hidden_SD.shape[0]
        self._hidden[:num_rows] = hidden_SD.numpy()
        self._program.run(num_rows, num_threads)
        return torch.from_numpy(self._logits[:num_rows, : self._vocab_size])


class Forward:
    """The program of all layers, with buffers for so many tokens."""

    def __init__(
        self,
        config: ModelConfig,
        weights: PackedWeights,
        arithmetic: Arithmetic,
        key_means: NDArray[np.float32] | None,
        kv: Tensor,
        *,
        num_tokens: int,
        threads: int,
    ) -> None:
        """``key_means`` [layers, G, H] may change between runs; None: keys are not mixed."""
        self.num_tokens = num_tokens
        self._config = config
        self._key_means = key_means
        self._arithmetic = arithmetic
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self._x = np.zeros((num_tokens, config.hidden), np.float32)
        self._qkv = np.zeros((num_tokens, -(-heads // 16) * 16), np.float32)
        self._attended = np.zeros((num_tokens, config.num_heads * config.head_dim), np.float32)
        self._gate_up = np.zeros((num_tokens, 2 * config.intermediate), np.float32)
        self.hidden = np.zeros((num_tokens, config.hidden), np.float32)
        self._threads = threads
        self._attention_scratch = np.zeros(0, np.uint8)
        self._inputs: tuple[NDArray[np.generic], ...] = ()
        self._normed, self._heads, self._gated = (
            arithmetic.rows(num_tokens, width, threads)
            for width in (config.hidden, self._attended.shape[1], config.intermediate)
        )
        stages = [*self._normed.embed(weights.embedding, self._x)]
        # Of each layer, the number of stages after which its keys are there.
        self.keys_after: list[int] = []
        for index, layer in enumerate(weights.layers):
            stages += self._queries_and_keys(index, layer)
            self.keys_after.append(len(stages))
            stages += self._attention(index, layer, kv)
            stages += self._feed_forward(layer)
        stages.append(
            norm_stage(
                x=self._x.ctypes.data,
                stride=config.hidden,
                width=config.hidden,
                weight=weights.norm.ctypes.data,
                eps=config.rms_eps,
                out=self.hidden.ctypes.data,
            )
        )
        self.program = Program(stages)

    def begin(self, tokens_T: NDArray[np.int64], rotations: NDArray[np.float32], batch: AttnBatch) -> None:
        """Tell all stages what the next run computes."""
        config = self._config
        tiles, limits = cut_tiles(batch, config.num_heads // config.num_kv_heads), visible_lengths(batch)
        tables = np.ascontiguousarray(batch.tables_RB, dtype=np.int32)
        slots = np.ascontiguousarray(batch.slots_T, dtype=np.int64)
        heads = frame.heads_at_once(len(tiles), config.num_kv_heads, self._threads)
        per_thread = heads * self._arithmetic.attention.scratch_bytes(int(limits.max()), config.head_dim)
        if self._attention_scratch.size < per_thread * self._threads + 64:
            self._attention_scratch = np.zeros(2 * per_thread * self._threads + 64, np.uint8)
        # The stages read them until the run ends.
        self._inputs = tokens_T, rotations, tiles, limits, tables, slots
        values = {
            TOKENS: tokens_T.ctypes.data,
            ROTATIONS: rotations.ctypes.data,
            frame.TILES: tiles.ctypes.data,
            frame.NUM_TILES: len(tiles),
            frame.TABLES: tables.ctypes.data,
            frame.TABLE_STRIDE: tables.shape[1],
            frame.LIMITS: limits.ctypes.data,
            frame.SLOTS: slots.ctypes.data,
            # Rows of a whole cache line each.
            frame.SCRATCH: -(-self._attention_scratch.ctypes.data // 64) * 64,
            frame.SCRATCH_BYTES: per_thread,
            frame.HEADS_AT_ONCE: heads,
        }
        for place, value in values.items():
            self.program.frame[place] = value

    def keys(self, num_tokens: int) -> NDArray[np.float32]:
        """Keys of the layer that ran last, ``[T, G, H]``, as they go into the pool: without means, mixed."""
        first = self._config.num_heads * self._config.head_dim
        last = first + self._config.num_kv_heads * self._config.head_dim
        return self._qkv[:num_tokens, first:last].reshape(num_tokens, -1, self._config.head_dim)

    def has_massive(self, num_tokens: int) -> bool:
        """Whether the residual has massive activations now: over 100, and over 1,000 times the median size."""
        sizes = np.abs(self._x[:num_tokens])
        return bool(sizes.max() > max(100.0, 1000.0 * float(np.median(sizes))))

    def _queries_and_keys(self, index: int, layer: LayerWeights) -> list[Stage]:
        config = self._config
        return [
            self._normed.norm(self._x, layer.attention_norm, config.rms_eps, layer.qkv.matrix),
            self._normed.matmul(layer.qkv, self._qkv),
            place_stage(
                x=self._qkv.ctypes.data,
                stride=self._qkv.shape[1],
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                num_pairs=config.rope.dim // 2,
                k_mean=0 if self._key_means is None else self._key_means[index].ctypes.data,
                q_norm=0 if layer.q_norm is None else layer.q_norm.ctypes.data,
                k_norm=0 if layer.k_norm is None else layer.k_norm.ctypes.data,
                eps=config.rms_eps,
            ),
        ]

    def _attention(self, index: int, layer: LayerWeights, kv: Tensor) -> list[Stage]:
        config = self._config
        of = frame.AttentionLayer(
            qkv=self._qkv.ctypes.data,
            qkv_stride=self._qkv.shape[1],
            pool=kv.data_ptr(),
            num_layers=config.num_layers,
            layer=index,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            out=self._attended.ctypes.data,
            out_stride=self._attended.shape[1],
            window=config.window(index),
        )
        return [
            self._arithmetic.attention.stage(of),
            self._heads.take(self._attended, layer.out.matrix),
            self._heads.matmul(layer.out, self._x, adds=True),
        ]

    def _feed_forward(self, layer: LayerWeights) -> list[Stage]:
        return [
            self._normed.norm(self._x, layer.mlp_norm, self._config.rms_eps, layer.gate_up.matrix),
            self._normed.matmul(layer.gate_up, self._gate_up),
            self._gated.gate(self._gate_up, layer.down.matrix),
            *(self._gated.matmul(linear, self._x, adds=True) for linear in (layer.down, layer.down_rest) if linear),
        ]
