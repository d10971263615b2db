"""A bundle's prefix: tokens that stand before every sequence, whose keys and values were made with the bundle.

They are in the cache before anything is fed, so no graph ever runs on these tokens: the first token of a sequence has
activations a thousand times larger than all others, and the graphs' ranges were made without them.

Shapes: K key-value heads, D size of a head, P tokens of the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import PrefixPlace, PrefixTensor
from octavo_device.errors import BundleDamaged

__all__ = ["NO_PREFIX", "Prefix", "read_prefix"]


class _Cache(Protocol):
    def append(self, outputs: Mapping[str, NDArray[Any]], num_new: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """Tokens, and by name ``key_i`` [K, 1, D, P] and ``value_i`` [K, 1, P, D] of each layer, float32. May be empty."""

    token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Slots of the context that it takes; positions of what is fed begin here."""
        return len(self.token_ids)

    def fill(self, cache: _Cache) -> None:
        """Put it into an empty cache."""
        if self.token_ids:
            cache.append(self.arrays, self.num_tokens)

    def before(self, prompt: Sequence[int]) -> list[int]:
        """The prompt with the prefix at its beginning, once.

        A prompt that begins with all of the prefix's tokens has it already. Before any other the prefix is put; of one
        that begins with the model's first token (BOS), as the prefix does, that token is left out.
        """
        if tuple(prompt[: self.num_tokens]) == self.token_ids:
            return list(prompt)
        begun = self.bos_token_id is not None and list(prompt[:1]) == [self.bos_token_id] == list(self.token_ids[:1])
        return [*self.token_ids, *prompt[1 if begun else 0 :]]


NO_PREFIX = Prefix()


def read_prefix(folder: Path, place: PrefixPlace | None) -> Prefix:
    """The prefix whose file lies in a folder; the empty one where there is none.

    Raises:
        BundleDamaged: The file does not hold what is said of it.
    """
    if place is None:
        return NO_PREFIX
    try:
        data = (folder / place.file).read_bytes()
        arrays = {tensor.name: _floats(data, tensor) for tensor in place.tensors}
    except (OSError, ValueError, TypeError) as error:
        raise BundleDamaged(f"{place.file} cannot be read: {error}", hint="copy the whole bundle again") from None
    return Prefix(token_ids=place.token_ids, bos_token_id=place.bos_token_id, arrays=arrays)


def _floats(data: bytes, tensor: PrefixTensor) -> NDArray[np.float32]:
    dtype = np.dtype(tensor.dtype).newbyteorder("<")
    count = int(np.prod(tensor.shape))
    values = np.frombuffer(data, dtype, count, tensor.offset).astype(np.float32).reshape(tensor.shape)
    if tensor.scale is None:
        return values
    return (values - np.float32(tensor.zero_point or 0)) * np.float32(tensor.scale)
