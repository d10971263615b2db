"""Typed look-ups in the numbers that a model's file says about itself. Knows no format and no family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo_worker.models.base import InvalidModel

# Far beyond any real model; a number above it is a damaged file, and would ask for absurd memory.
MAX_SIZE = 1 << 24
MAX_LAYERS = 1024
MAX_CONTEXT = 1 << 28


class Fields:
    """A mapping that came from a file; every refusal names the file and the field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the file has the field at all, be it null."""
        return name in self._values

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """An integer within bounds."""
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be true or false")
        return value
