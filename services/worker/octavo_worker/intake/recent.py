"""Remembers which prompt beginnings this worker has computed lately, for placement. A stale key costs only a miss."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

CAPACITY = 256


class RecentPrefixes:
    """Prefix keys, least recently used first out."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[str, None] = OrderedDict()

    def add(self, keys: Iterable[str]) -> None:
        """The worker computes a prompt with these keys."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def keys(self) -> list[str]:
        """All of them, the newest last."""
        return list(self._keys)
