"""Inputs of a graph for many batches, kept on disk: a past of all layers and batches would be gigabytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from octavo_device.feeds import Decoding
from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec, TensorSpec


class StoredBatch(Mapping[str, NDArray[Any]]):
    """Inputs by name, read when they are asked for; zeros behind the rest of an axis take no space."""

    def __init__(self, folder: Path, specs: Mapping[str, TensorSpec]) -> None:
        self._folder, self._specs = folder, specs

    def __getitem__(self, name: str) -> NDArray[Any]:
        spec = self._specs[name]
        file = self._folder / f"{name}.npy"
        stored = np.load(file) if file.is_file() else None
        if stored is not None and stored.shape == spec.shape:
            return stored
        values = np.zeros(spec.shape, spec.dtype)
        if stored is not None:
            values[tuple(slice(length) for length in stored.shape)] = stored
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class BatchStore(Sequence[StoredBatch]):
    """Batches in the order in which they were added, in a folder of their own."""

    def __init__(self, folder: Path, spec: GraphSpec, ar: int) -> None:
        self._folder = folder
        self._specs = {tensor.name: tensor for tensor in spec.inputs(ar)}
        self._batches: list[StoredBatch] = []

    def add(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Keep a batch."""
        folder = self._folder / str(len(self._batches))
        folder.mkdir(parents=True)
        for name in self._specs:
            stored = _filled(inputs[name])
            if stored is not None:
                np.save(folder / f"{name}.npy", stored)
        self._batches.append(StoredBatch(folder, self._specs))

    @overload
    def __getitem__(self, index: int) -> StoredBatch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredBatch]: ...
    def __getitem__(self, index: int | slice) -> StoredBatch | Sequence[StoredBatch]:
        return self._batches[index]

    def __len__(self) -> int:
        return len(self._batches)


def _filled(values: NDArray[Any]) -> NDArray[Any] | None:
    """The values up to the last that is not zero, along each axis; None if all are."""
    ends: list[slice] = []
    for axis in range(values.ndim):
        places = np.flatnonzero(values.any(axis=tuple(other for other in range(values.ndim) if other != axis)))
        if not len(places):
            return None
        ends.append(slice(int(places[-1]) + 1))
    return values[tuple(ends)]


def texts_behind(prefix: Prefix, folder: Path, spec: GraphSpec, texts: Sequence[Sequence[int]]) -> BatchStore:
    """Inputs of the largest graph for texts of its number of tokens or fewer, each by itself behind the prefix."""
    store = BatchStore(folder, spec, spec.ars[0])
    for text in texts:
        store.add(Decoding(spec, _never, prefix).inputs(spec.ars[0], text))
    return store


def texts_behind_nothing(folder: Path, spec: GraphSpec, texts: Sequence[Sequence[int]]) -> BatchStore:
    """As `texts_behind` an empty prefix."""
    return texts_behind(NO_PREFIX, folder, spec, texts)


def next_inputs(
    spec: GraphSpec,
    outputs: Mapping[str, NDArray[Any]],
    num_before: int,
    tokens: Sequence[int],
    *,
    ar: int | None = None,
    prefix: Prefix = NO_PREFIX,
) -> Mapping[str, NDArray[Any]]:
    """Inputs of the graph for ``ar`` tokens (the largest if none is given) behind a prefix and ``num_before`` others.

    Keys and values of the others are the first columns of ``outputs``.
    """
    decoding = Decoding(spec, _never, prefix)
    decoding.cache.append(outputs, num_before)
    return decoding.inputs(spec.ars[0] if ar is None else ar, tokens)


def _never(ar: int, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    raise AssertionError("inputs are made without a run")
