"""From token ids to what a graph takes: positions, mask, past; and the cache, which lives here and in no graph.

numpy only: the same code feeds torch, ONNX Runtime and a device. The cache is left-aligned: token i of the sequence is
column i of the past, columns that are not filled yet are masked. The new tokens are the last AR columns; a chunk that
is shorter than AR is padded behind, and nothing sees the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.errors import DoesNotFit
from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec, RopeSpec

__all__ = ["Arrays", "Call", "Decoding", "KVCache", "RunGraph", "attention_mask", "rope_tables"]

Floats = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
# Runs the graph for so many new tokens on inputs by name; gives outputs by name.
RunGraph = Callable[[int, Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def rope_tables(rope: RopeSpec, positions: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Cosines and sines `[len(positions), D / 2]`, float32 throughout as transformers computes them."""
    frequencies = np.array(rope.inverse_frequencies, np.float32)
    angles = positions.astype(np.float32)[:, None] * frequencies
    factor = np.float32(rope.attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


class KVCache:
    """Keys and values of one sequence, of all layers."""

    def __init__(self, spec: GraphSpec) -> None:
        self._spec = spec
        heads, dim, length = spec.num_kv_heads, spec.head_dim, spec.context_length
        self._keys = [np.zeros((heads, 1, dim, length), np.float32) for _ in range(spec.num_layers)]
        self._values = [np.zeros((heads, 1, length, dim), np.float32) for _ in range(spec.num_layers)]
        self.num_tokens = 0

    def past(self, ar: int) -> Arrays:
        """The past as inputs of the graph for `ar` new tokens: copies, so that they may be kept."""
        length = self._spec.past_length(ar)
        result: Arrays = {}
        for layer in range(self._spec.num_layers):
            result[f"past_key_{layer}"] = self._keys[layer][..., :length].copy()
            result[f"past_value_{layer}"] = self._values[layer][:, :, :length].copy()
        return result

    def append(self, outputs: Mapping[str, NDArray[Any]], num_new: int) -> None:
        """Keep the first `num_new` of the tokens that a graph was run on."""
        start, stop = self.num_tokens, self.num_tokens + num_new
        assert stop <= self._spec.context_length
        for layer in range(self._spec.num_layers):
            self._keys[layer][..., start:stop] = outputs[f"key_{layer}"][..., :num_new]
            self._values[layer][:, :, start:stop] = outputs[f"value_{layer}"][:, :, :num_new]
        self.num_tokens = stop

    def clear(self) -> None:
        """Forget the sequence."""
        for array in (*self._keys, *self._values):
            array.fill(0)
        self.num_tokens = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of a graph: `num_new` real tokens of `ar`, the rest padding."""

    ar: int
    start: int  # position of its first token
    num_new: int
    inputs: Arrays
    outputs: Mapping[str, NDArray[Any]]

    @property
    def logits(self) -> Floats:
        """`[num_new, V]`: of the real tokens."""
        return self.outputs["logits"][0, : self.num_new]


class Decoding:
    """One sequence being fed to a model's graphs in calls of fixed sizes, behind a prefix."""

    def __init__(self, spec: GraphSpec, run: RunGraph, prefix: Prefix = NO_PREFIX) -> None:
        self.spec = spec
        self.cache = KVCache(spec)
        prefix.fill(self.cache)
        self._run = run

    def calls(self, tokens: Sequence[int], *, ars: Sequence[int] | None = None) -> Iterator[Call]:
        """Feed tokens behind those that were fed before; yields each run once its tokens are in the cache.

        Each call takes the largest of `ars` (all of the spec's by default) that has room for the past, or a smaller
        one that already takes all that is left.

        Raises:
            DoesNotFit: The sequence gets longer than the context, or no graph of `ars` has room for its past.
        """
        allowed = sorted(self.spec.ars if ars is None else ars)
        self._check(tokens)
        done = 0
        while done < len(tokens):
            ar = self._choose(allowed, len(tokens) - done)
            piece = tokens[done : done + ar]
            inputs = self.inputs(ar, piece)
            start, outputs = self.cache.num_tokens, self._run(ar, inputs)
            self.cache.append(outputs, len(piece))
            done += len(piece)
            yield Call(ar=ar, start=start, num_new=len(piece), inputs=inputs, outputs=outputs)

    def logits(self, tokens: Sequence[int], *, ars: Sequence[int] | None = None) -> Floats:
        """Feed tokens; their logits `[len(tokens), V]`. Raises as `calls`."""
        return np.concatenate([call.logits for call in self.calls(tokens, ars=ars)])

    def inputs(self, ar: int, tokens: Sequence[int]) -> Arrays:
        """Inputs of the graph for `ar` tokens, the first of which are `tokens`; the padding repeats the last."""
        num_past, num_new, spec = self.cache.num_tokens, len(tokens), self.spec
        ids = np.full((1, ar), tokens[-1], np.int64)
        ids[0, :num_new] = tokens
        positions = np.arange(num_past, num_past + ar)
        cos, sin = rope_tables(spec.rope, positions)
        mask = attention_mask(spec, ar, num_past)
        return {
            "input_ids": ids,
            "attention_mask": mask[None, None],
            "cos": cos[None, None],
            "sin": sin[None, None],
            **self.cache.past(ar),
        }

    def _choose(self, ascending: Sequence[int], num_left: int) -> int:
        fitting = [ar for ar in ascending if self.cache.num_tokens <= self.spec.past_length(ar)]
        if not fitting:
            raise DoesNotFit(
                f"no graph for {', '.join(map(str, ascending))} new tokens has room for a past of "
                f"{self.cache.num_tokens} in a context of {self.spec.context_length}"
            )
        return next((ar for ar in fitting if ar >= num_left), fitting[-1])

    def _check(self, tokens: Sequence[int]) -> None:
        length = self.cache.num_tokens + len(tokens)
        if length > self.spec.context_length:
            raise DoesNotFit(f"{length} tokens do not fit a context of {self.spec.context_length}")
        bad = [token for token in tokens if not 0 <= token < self.spec.vocab_size]
        if bad:
            raise DoesNotFit(f"token {bad[0]} is none of the model's {self.spec.vocab_size}")


def attention_mask(spec: GraphSpec, ar: int, num_past: int) -> Floats:
    """`[AR, CL]`: 0 where a new token may look, else the spec's mask value. Padding sees itself and what is before."""
    past = spec.past_length(ar)
    column_C = np.arange(spec.context_length)
    is_past_C = column_C < past
    # Position of each column in the sequence; the columns between the past's end and the new tokens hold nothing.
    position_C = np.where(is_past_C, column_C, column_C - past + num_past)
    position_A1 = np.arange(num_past, num_past + ar)[:, None]
    seen_AC = (position_C <= position_A1) & (~is_past_C | (column_C < num_past))
    if spec.window is not None:
        seen_AC &= position_C > position_A1 - spec.window
    return np.where(seen_AC, np.float32(0), np.float32(spec.mask_value))
