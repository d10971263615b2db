"""A decoder in integers as programs of compiled stages, with the buffers between them. Knows no plan and no sequence.

T fed tokens, S wanted positions, D hidden, I feed-forward, N query heads, G key-value heads, H head dim, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.tiles import cut_tiles, visible_lengths
from octavo_worker.kernels import attend_int8
from octavo_worker.kernels import attention_int8 as attention
from octavo_worker.kernels.embedding import TOKENS, embedding_stage
from octavo_worker.kernels.grouped_matmul import matmul_stage
from octavo_worker.kernels.integer import GROUP
from octavo_worker.kernels.positions import ROTATIONS, place_stage
from octavo_worker.kernels.program import Program, Stage
from octavo_worker.kernels.quantize import gate_quantize_stage, norm_quantize_stage, norm_stage, quantize_stage
from octavo_worker.models.base import ModelConfig
from octavo_worker.models.integer_weights import IntegerWeights, LayerWeights, LinearWeights


class Rows:
    """Quantised rows of one width: what a product reads."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.width = width
        self._ints = np.zeros((num_rows, width), np.int8)
        self._scales = np.zeros((num_rows, width // GROUP), np.float32)
        self._sums = np.zeros((num_rows, width // GROUP), np.int32)
        self.ints, self.scales, self.sums = (a.ctypes.data for a in (self._ints, self._scales, self._sums))

    def matmul(self, linear: LinearWeights, out: NDArray[np.float32], *, adds: bool = False) -> Stage:
        """Their product with a matrix, into rows of floats."""
        matrix = linear.matrix
        return matmul_stage(
            matrix.form,
            weights=matrix.data.ctypes.data,
            ints=self.ints,
            scales=self.scales,
            sums=self.sums,
            num_inputs=matrix.num_inputs,
            num_outputs=matrix.padded_outputs,
            out=out.ctypes.data,
            stride=out.shape[1],
            adds=adds,
            bias=0 if linear.bias is None else linear.bias.ctypes.data,
        )


class Head:
    """Logits of some rows of hidden states."""

    def __init__(self, config: ModelConfig, weights: IntegerWeights, num_rows: int) -> None:
        self.num_rows = num_rows
        self._rows = Rows(num_rows, config.hidden)
        self._hidden = np.zeros((num_rows, config.hidden), np.float32)
        self._logits = np.zeros((num_rows, weights.head.padded_outputs), np.float32)
        quantized = quantize_stage(
            x=self._hidden.ctypes.data,
            stride=config.hidden,
            width=config.hidden,
            ints=self._rows.ints,
            scales=self._rows.scales,
            sums=self._rows.sums,
            zero=weights.head.form.zero,
        )
        self._program = Program([quantized, self._rows.matmul(LinearWeights(matrix=weights.head), self._logits)])
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
        weights: IntegerWeights,
        key_means: NDArray[np.float32],
        kv: Tensor,
        *,
        num_tokens: int,
        threads: int,
    ) -> None:
        """``key_means`` [layers, G, H] may change between runs."""
        self.num_tokens = num_tokens
        self._config = config
        self._key_means = key_means
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        widest = max(config.hidden, config.intermediate)
        self._x = np.zeros((num_tokens, config.hidden), np.float32)
        self._qkv = np.zeros((num_tokens, -(-heads // 16) * 16), np.float32)
        self._attended = np.zeros((num_tokens, config.num_heads * config.head_dim), np.float32)
        self._gate_up = np.zeros((num_tokens, 2 * config.intermediate), np.float32)
        self.hidden = np.zeros((num_tokens, config.hidden), np.float32)
        self._scratch = np.zeros((threads, widest), np.float32)
        self._threads = threads
        self._attention_scratch = np.zeros(0, np.uint8)
        self._inputs: tuple[NDArray[np.generic], ...] = ()
        self._normed = Rows(num_tokens, config.hidden)
        self._heads = Rows(num_tokens, self._attended.shape[1])
        self._gated = Rows(num_tokens, config.intermediate)
        embedding = weights.embedding
        stages = [
            embedding_stage(
                embedding.form, weights=embedding.data.ctypes.data, width=config.hidden, out=self._x.ctypes.data
            )
        ]
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
        heads = attention.heads_at_once(len(tiles), config.num_kv_heads, self._threads)
        per_thread = heads * attend_int8.scratch_bytes(int(limits.max()), config.head_dim)
        if self._attention_scratch.size < per_thread * self._threads + 64:
            self._attention_scratch = np.zeros(2 * per_thread * self._threads + 64, np.uint8)
        # The stages read them until the run ends.
        self._inputs = tokens_T, rotations, tiles, limits, tables, slots
        values = {
            TOKENS: tokens_T.ctypes.data,
            ROTATIONS: rotations.ctypes.data,
            attend_int8.TILES: tiles.ctypes.data,
            attend_int8.NUM_TILES: len(tiles),
            attend_int8.TABLES: tables.ctypes.data,
            attend_int8.TABLE_STRIDE: tables.shape[1],
            attend_int8.LIMITS: limits.ctypes.data,
            attend_int8.SLOTS: slots.ctypes.data,
            # Rows of a whole cache line each.
            attend_int8.SCRATCH: -(-self._attention_scratch.ctypes.data // 64) * 64,
            attend_int8.SCRATCH_BYTES: per_thread,
            attend_int8.HEADS_AT_ONCE: heads,
        }
        for place, value in values.items():
            self.program.frame[place] = value

    def keys(self, num_tokens: int) -> NDArray[np.float32]:
        """Keys of the layer that ran last, ``[T, G, H]``, as they go into the pool: without means, mixed."""
        first = self._config.num_heads * self._config.head_dim
        last = first + self._config.num_kv_heads * self._config.head_dim
        return self._qkv[:num_tokens, first:last].reshape(num_tokens, -1, self._config.head_dim)

    def _norm(self, weight: NDArray[np.float32], zero: int) -> Stage:
        return norm_quantize_stage(
            x=self._x.ctypes.data,
            stride=self._config.hidden,
            width=self._config.hidden,
            ints=self._normed.ints,
            scales=self._normed.scales,
            sums=self._normed.sums,
            zero=zero,
            weight=weight.ctypes.data,
            eps=self._config.rms_eps,
            scratch=self._scratch.ctypes.data,
        )

    def _queries_and_keys(self, index: int, layer: LayerWeights) -> list[Stage]:
        config = self._config
        return [
            self._norm(layer.attention_norm, layer.qkv.matrix.form.zero),
            self._normed.matmul(layer.qkv, self._qkv),
            place_stage(
                x=self._qkv.ctypes.data,
                stride=self._qkv.shape[1],
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                num_pairs=config.rope.dim // 2,
                k_mean=self._key_means[index].ctypes.data,
                q_norm=0 if layer.q_norm is None else layer.q_norm.ctypes.data,
                k_norm=0 if layer.k_norm is None else layer.k_norm.ctypes.data,
                eps=config.rms_eps,
            ),
        ]

    def _attention(self, index: int, layer: LayerWeights, kv: Tensor) -> list[Stage]:
        config = self._config
        return [
            attention.attention_stage(
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
            ),
            quantize_stage(
                x=self._attended.ctypes.data,
                stride=self._heads.width,
                width=self._heads.width,
                ints=self._heads.ints,
                scales=self._heads.scales,
                sums=self._heads.sums,
                zero=layer.out.matrix.form.zero,
            ),
            self._heads.matmul(layer.out, self._x, adds=True),
        ]

    def _feed_forward(self, layer: LayerWeights) -> list[Stage]:
        return [
            self._norm(layer.mlp_norm, layer.gate_up.matrix.form.zero),
            self._normed.matmul(layer.gate_up, self._gate_up),
            gate_quantize_stage(
                x=self._gate_up.ctypes.data,
                width=self._config.intermediate,
                ints=self._gated.ints,
                scales=self._gated.scales,
                sums=self._gated.sums,
                zero=layer.down.matrix.form.zero,
                scratch=self._scratch.ctypes.data,
            ),
            self._gated.matmul(layer.down, self._x, adds=True),
        ]


def pool_shape(config: ModelConfig, num_blocks: int) -> tuple[int, int]:
    """Shape of the pool in bytes: blocks of 16 tokens, each one contiguous region."""
    layer = attention.layer_bytes(config.num_kv_heads, config.head_dim)
    return num_blocks, config.num_layers * (layer + attention.layer_scale_bytes(config.num_kv_heads))
