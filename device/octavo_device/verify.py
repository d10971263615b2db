"""Replays a bundle's test vectors: every part and number of new tokens, each output compared with what it was built to.

The past of every call begins with the bundle's prefix, as the runner fills its cache.
Decibels are 10 log10(sum expected^2 / sum error^2), the worst of all calls.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import Bundle, BundleGraph, BundlePart
from octavo_device.errors import BundleDamaged
from octavo_device.feeds import Arrays
from octavo_device.model import DeviceModel
from octavo_device.prefix import Prefix

__all__ = ["GraphResult", "limit_db", "replay"]

# The runtime that the vectors come from gives them again but for rounding; another one has its own arithmetic.
_SAME_DB, _OTHER_DB = 60.0, 20.0
_GOLDEN = "onnxruntime"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResult:
    """One graph: decibels of each output by name."""

    part: str
    ar: int
    outputs: Mapping[str, float]

    @property
    def worst(self) -> tuple[str, float]:
        """The output that lost most, and its decibels."""
        return min(self.outputs.items(), key=lambda item: item[1])


def limit_db(bundle: Bundle) -> float:
    """What an output must reach."""
    return _SAME_DB if bundle.runtime == _GOLDEN else _OTHER_DB


def replay(bundle: Bundle) -> Iterator[GraphResult]:
    """All graphs, one loaded at a time.

    Raises:
        BundleDamaged: Vectors are damaged, of other tensors, or made behind another prefix than the bundle's.
        RuntimeMissing: What runs the graphs is not here.
    """
    model = DeviceModel(bundle)
    for part in bundle.parts:
        for ar, graph in part.graphs.items():
            yield GraphResult(part=part.name, ar=ar, outputs=_worst(model, part, graph, bundle))
            model.release(part, ar)


def _worst(model: DeviceModel, part: BundlePart, graph: BundleGraph, bundle: Bundle) -> dict[str, float]:
    found: dict[str, float] = {}
    for inputs, expected in _calls(bundle, graph):
        _check_prefix(model.prefix, inputs, graph)
        got = model.run_part(part, graph.ar, inputs)
        for name, values in expected.items():
            found[name] = min(found.get(name, math.inf), _sqnr_db(values, got[name]))
    return found


def _check_prefix(prefix: Prefix, inputs: Mapping[str, NDArray[Any]], graph: BundleGraph) -> None:
    """Whether the first columns of a call's past are the prefix's keys and values, to the bit."""
    for name, values in prefix.arrays.items():
        past = inputs.get(f"past_{name}")
        if past is None:
            continue
        columns = past[tuple(slice(length) for length in values.shape)]
        if not np.array_equal(columns, values):
            told = f"{graph.vectors} was made behind another prefix than the bundle's: past_{name}"
            raise BundleDamaged(told, hint="copy the whole bundle again")


def _calls(bundle: Bundle, graph: BundleGraph) -> Iterator[tuple[Arrays, Arrays]]:
    try:
        with np.load(bundle.path(graph.vectors)) as file:
            calls = sorted({int(name.partition("/")[0]) for name in file.files})
            for call in calls:
                yield (
                    {tensor.name: file[f"{call}/{tensor.name}"] for tensor in graph.inputs},
                    {tensor.name: file[f"{call}/{tensor.name}"] for tensor in graph.outputs},
                )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BundleDamaged(f"{graph.vectors} cannot be read: {error}", hint="copy the whole bundle again") from None


def _sqnr_db(expected: NDArray[Any], got: NDArray[Any]) -> float:
    exact = expected.astype(np.float64)
    error = exact - got.astype(np.float64)
    signal, noise = float(np.sum(exact * exact)), float(np.sum(error * error))
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal else -math.inf
