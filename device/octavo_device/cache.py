"""Keys and values of one sequence, laid out as the decoding graph takes them: no token copies what is there.

Larger graphs have room for a shorter past, whose columns are cut out once a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.feeds import Arrays
from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec

__all__ = ["LiveCache"]


class LiveCache:
    """The past of a sequence: columns [0, min(num_tokens, capacity)) are filled.

    It begins with a prefix, which stays. Tokens beyond the capacity count and are not kept: nothing can be fed behind
    them.
    """

    def __init__(self, spec: GraphSpec, prefix: Prefix = NO_PREFIX) -> None:
        self._spec, self._ar = spec, spec.ars[-1]
        heads, dim, length = spec.num_kv_heads, spec.head_dim, spec.past_length(self._ar)
        self._arrays: Arrays = {}
        for layer in range(spec.num_layers):
            self._arrays[f"past_key_{layer}"] = np.zeros((heads, 1, dim, length), np.float32)
            self._arrays[f"past_value_{layer}"] = np.zeros((heads, 1, length, dim), np.float32)
        self.num_tokens = 0
        prefix.fill(self)
        self._num_kept = self.num_tokens

    @property
    def capacity(self) -> int:
        """Tokens that it can hold: the past of the smallest graph."""
        return self._spec.past_length(self._ar)

    def past(self, ar: int, layers: Sequence[int]) -> Arrays:
        """The past of layers [first, stop) for the graph for ``ar`` tokens; valid until the next ``append``."""
        length, result = self._spec.past_length(ar), Arrays()
        for layer in range(*layers):
            key, value = (self._arrays[f"past_{kind}_{layer}"] for kind in ("key", "value"))
            if ar != self._ar:
                key, value = np.ascontiguousarray(key[..., :length]), np.ascontiguousarray(value[:, :, :length])
            result[f"past_key_{layer}"], result[f"past_value_{layer}"] = key, value
        return result

    def append(self, outputs: Mapping[str, NDArray[Any]], num_new: int) -> None:
        """Count the first ``num_new`` of the tokens that graphs were run on; keep them as far as there is room."""
        start = self.num_tokens
        assert start <= self.capacity, "nothing can be fed behind a token that was not kept"
        stop = min(start + num_new, self.capacity)
        for layer in range(self._spec.num_layers):
            key, value = outputs[f"key_{layer}"], outputs[f"value_{layer}"]
            self._arrays[f"past_key_{layer}"][..., start:stop] = key[..., : stop - start]
            self._arrays[f"past_value_{layer}"][:, :, start:stop] = value[:, :, : stop - start]
        self.num_tokens = start + num_new

    def cut(self, num_tokens: int) -> None:
        """Forget all but the first tokens, no more than it holds: the rest is masked, and written over later."""
        assert num_tokens <= self.capacity
        self.num_tokens = max(self._num_kept, min(self.num_tokens, num_tokens))
