"""What every part says of real text in ONNX Runtime: the inputs and outputs that others are compared with.

Each graph is called twice: with nothing before it but the prefix, and behind the first tokens of the text too. Memory
holds one part's weights, and the inputs of one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_device.feeds import Arrays, Decoding
from octavo_device.prefix import NO_PREFIX, Prefix, read_prefix
from octavo_device.spec import GraphSpec
from octavo_edge.graph.manifest import ExportManifest, PartGraph
from octavo_edge.graph.runtime import OrtGraph

__all__ = ["NUM_CALLS", "read_vectors", "vectors_file", "whole_inputs", "write_vectors"]

NUM_CALLS = 2


def vectors_file(part: str, ar: int) -> str:
    """Name of the file with the vectors of a part's graph."""
    return f"vectors/{part}_ar{ar}.npz"


def write_vectors(
    folder: Path, manifest: ExportManifest, spec: GraphSpec, tokens: Sequence[int], on_graph: Callable[[str], None]
) -> Arrays:
    """Run all parts of an exported model and write the vectors that its manifest names.

    `on_graph` is told of each graph before it runs. Returns what `whole_inputs` needs as `first`.
    """
    (folder / "vectors").mkdir()
    prefix = read_prefix(folder, manifest.prefix)
    largest, first = spec.ars[0], Arrays()
    calls = [whole_inputs(spec, tokens, largest, 0, {}, prefix)]
    for _, _, outputs in _runs(folder, manifest, largest, calls, on_graph):
        first |= {name: values for name, values in outputs[0].items() if name.startswith(("key_", "value_"))}
    for ar in spec.ars:
        calls = [whole_inputs(spec, tokens, ar, call, first, prefix) for call in range(NUM_CALLS)]
        for graph, feeds, outputs in _runs(folder, manifest, ar, calls, on_graph):
            arrays: dict[str, Any] = {}
            for call, (given, made) in enumerate(zip(feeds, outputs, strict=True)):
                arrays |= {f"{call}/{name}": values for name, values in (given | made).items()}
            np.savez_compressed(folder / graph.vectors, **arrays)
    return first


def whole_inputs(
    spec: GraphSpec,
    tokens: Sequence[int],
    ar: int,
    call: int,
    first: Mapping[str, NDArray[Any]],
    prefix: Prefix = NO_PREFIX,
) -> Arrays:
    """Inputs of the whole model behind a prefix.

    `first` are keys and values of the largest graph's first call, for the second one.
    """
    num_before = min(spec.ars[0], spec.past_length(spec.ars[0]) - prefix.num_tokens)
    decoding = Decoding(spec, _never, prefix)
    if call == 0:
        return decoding.inputs(ar, tokens[: min(ar, num_before)])
    decoding.cache.append(first, num_before)
    num_new = min(ar, spec.context_length - decoding.cache.num_tokens)
    return decoding.inputs(ar, tokens[num_before : num_before + num_new])


def read_vectors(folder: Path, graph: PartGraph) -> Iterator[tuple[Arrays, Arrays]]:
    """Inputs and outputs of each call."""
    with np.load(folder / graph.vectors) as file:
        for call in range(NUM_CALLS):
            yield (
                {tensor.name: file[f"{call}/{tensor.name}"] for tensor in graph.inputs},
                {tensor.name: file[f"{call}/{tensor.name}"] for tensor in graph.outputs},
            )


def _runs(
    folder: Path,
    manifest: ExportManifest,
    ar: int,
    calls: Sequence[Mapping[str, NDArray[Any]]],
    on_graph: Callable[[str], None],
) -> Iterator[tuple[PartGraph, list[Arrays], list[Arrays]]]:
    """Each part's graph with the inputs and outputs of all calls, one session at a time."""
    streams: list[Arrays] = [{} for _ in calls]
    for part in manifest.parts:
        on_graph(f"{part.name}, {ar} tokens")
        graph = part.graph(ar)
        session = OrtGraph(folder / graph.file)
        feeds: list[Arrays] = []
        outputs: list[Arrays] = []
        for call, stream in zip(calls, streams, strict=True):
            feeds.append({tensor.name: {**call, **stream}[tensor.name] for tensor in graph.inputs})
            outputs.append(session.run(feeds[-1]))
            stream.update({name: values for name, values in outputs[-1].items() if name.startswith("hidden_")})
        yield graph, feeds, outputs


def _never(ar: int, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    raise AssertionError("inputs are made without a run")
