"""A bundle's parts as one model: embeds tokens, runs the decoder's parts one after another, and the head for one token.

Shapes: A new tokens of a call, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import Bundle, BundleGraph, BundlePart
from octavo_device.cache import LiveCache
from octavo_device.errors import BundleDamaged, ContextFull, DoesNotFit
from octavo_device.feeds import Arrays, attention_mask, rope_tables
from octavo_device.prefix import read_prefix
from octavo_device.runtimes import Session, check_driven, make_session
from octavo_device.table import EmbeddingTable, on_grid

__all__ = ["DeviceModel"]


class DeviceModel:
    """The graphs of a bundle, loaded when they are first run, and the sequence that they are fed.

    The sequence begins with the bundle's prefix.

    Raises:
        BundleDamaged: The prefix's file does not hold what is said of it.
        RuntimeMissing: The bundle is for a runtime with tools of its own.
    """

    def __init__(self, bundle: Bundle, sessions: Callable[[Bundle, BundleGraph], Session] = make_session) -> None:
        check_driven(bundle)
        self.bundle, self.spec = bundle, bundle.spec
        self.prefix = read_prefix(bundle.folder, bundle.prefix)
        self.cache = LiveCache(bundle.spec, self.prefix)
        self._make, self._sessions = sessions, dict[tuple[str, int], Session]()
        self._table = None if bundle.embedding is None else EmbeddingTable(bundle.folder, bundle.embedding)

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Feed tokens behind those that were fed before; the logits `[V]` behind the last one.

        Raises:
            ContextFull: There is no room for all of them.
            DoesNotFit: A token is not the model's.
        """
        self._check(tokens)
        done = 0
        while True:
            ar = self._choose(len(tokens) - done)
            piece = tokens[done : done + ar]
            if done + len(piece) < len(tokens):
                # What goes on needs a past that was kept whole; without a graph for one token that ends early.
                piece = piece[: self.cache.capacity - self.cache.num_tokens]
            done += len(piece)
            logits = self._call(ar, piece, wants_logits=done == len(tokens))
            if logits is not None:
                return logits

    @property
    def num_free(self) -> int:
        """Tokens that may still be fed in one go.

        None behind more tokens than the cache keeps: the smallest graph, for more than one token, has no room there.
        """
        num_past = self.cache.num_tokens
        return self.spec.context_length - num_past if num_past <= self.cache.capacity else 0

    def run_part(self, part: BundlePart, ar: int, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """One part on inputs by name; the embedding of a host is a part as others."""
        graph = part.graphs[ar]
        if graph.file is None:
            return self._embed(part, graph, feeds)
        key = (part.name, ar)
        if key not in self._sessions:
            self._sessions[key] = self._make(self.bundle, graph)
        return self._sessions[key].run(feeds)

    def release(self, part: BundlePart, ar: int) -> None:
        """Give back the memory of one graph."""
        self._sessions.pop((part.name, ar), None)

    def _embed(self, part: BundlePart, graph: BundleGraph, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        if part.kind != "embedding" or self._table is None:
            raise BundleDamaged(f"{part.name} has no graph for {graph.ar} tokens")
        (output,) = graph.outputs
        rows_AH = on_grid(self._table.rows(feeds["input_ids"].reshape(-1)), output)
        return {output.name: rows_AH.reshape(output.shape)}

    def _call(self, ar: int, tokens: Sequence[int], *, wants_logits: bool) -> NDArray[np.float32] | None:
        num_past, num_new = self.cache.num_tokens, len(tokens)
        ids = np.full((1, ar), tokens[-1], np.int64)
        ids[0, :num_new] = tokens
        cos, sin = rope_tables(self.spec.rope, np.arange(num_past, num_past + ar))
        known: Arrays = {
            "input_ids": ids,
            "attention_mask": attention_mask(self.spec, ar, num_past)[None, None],
            "cos": cos[None, None],
            "sin": sin[None, None],
        }
        made: Arrays = {}
        logits: NDArray[np.float32] | None = None
        for part in self.bundle.parts:
            if part.kind == "head":
                logits = self._head(part, known, num_new - 1) if wants_logits else None
                continue
            outputs = self.run_part(part, ar, {**known, **self.cache.past(ar, part.layers)})
            known |= {name: values for name, values in outputs.items() if name.startswith("hidden_")}
            made |= outputs
        self.cache.append(made, num_new)
        if "logits" in made and wants_logits:
            logits = made["logits"][0, num_new - 1]
        return logits

    def _head(self, part: BundlePart, known: Arrays, last: int) -> NDArray[np.float32]:
        """The smallest head on the last token's row alone."""
        ar = self.spec.ars[-1]
        (given,) = part.graphs[ar].inputs
        row_H = known[given.name].reshape(-1, given.shape[-1])[last]
        rows = np.broadcast_to(row_H, given.shape).astype(np.float32)
        return self.run_part(part, ar, {given.name: rows})["logits"][0, 0]

    def _choose(self, num_left: int) -> int:
        """One token by the smallest graph, more by the largest that has room for the past."""
        fitting = [ar for ar in self.spec.ars if self.cache.num_tokens <= self.spec.past_length(ar)]
        if not fitting:
            raise self._full()
        return fitting[0] if num_left > fitting[-1] else fitting[-1]

    def _check(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise DoesNotFit("there is nothing to go on from", hint="give a prompt")
        if len(tokens) > self.num_free:
            raise self._full(len(tokens))
        bad = [token for token in tokens if not 0 <= token < self.spec.vocab_size]
        if bad:
            raise DoesNotFit(f"token {bad[0]} is none of the model's {self.spec.vocab_size}")

    def _full(self, num_more: int = 1) -> ContextFull:
        num_past, smallest = self.cache.num_tokens, self.spec.ars[-1]
        told = f"{num_past} tokens and {num_more} more do not fit a context of {self.spec.context_length}"
        if num_past + num_more <= self.spec.context_length:
            told = f"the graph for {smallest} tokens takes a past of {self.cache.capacity}, and there are {num_past}"
            return ContextFull(told, hint="begin anew, or build with 1 among --ar too")
        return ContextFull(told, hint="begin anew, or build with a larger --context-length")
