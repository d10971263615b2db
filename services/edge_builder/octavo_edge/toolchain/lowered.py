"""An exported model for tool-chains that keep integers in weights alone: activations and caches in floating point."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from octavo_edge.graph.manifest import Part, PartGraph, read_manifest
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.passes.lowering import weights_only

__all__ = ["LoweredGraph", "device_parts", "lowered_graphs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGraph:
    """One graph of one part as an ONNX file."""

    part: Part
    graph: PartGraph
    path: Path


def device_parts(folder: Path) -> tuple[Part, ...]:
    """The parts that run on a device: all but the embedding, which the host looks up."""
    return tuple(part for part in read_manifest(folder).parts if part.kind != "embedding")


@contextmanager
def lowered_graphs(folder: Path, out: Path) -> Iterator[list[LoweredGraph]]:
    """All graphs of an exported model that a device runs, in Linear form with integers in weights alone.

    The files are beside `out`, with a link to the model's one file of weights, and go when the context ends.
    """
    with TemporaryDirectory(prefix="lowered-", dir=out.parent) as name:
        scratch, made = Path(name), list[LoweredGraph]()
        _link(folder / WEIGHTS_FILE, scratch / WEIGHTS_FILE)
        for part in device_parts(folder):
            for graph in part.graphs:
                model = onnx.load(str(folder / graph.file), load_external_data=False)
                path = scratch / graph.file
                onnx.save(weights_only(model, folder), str(path))
                made.append(LoweredGraph(part=part, graph=graph, path=path))
        yield made


def _link(source: Path, copy: Path) -> None:
    """A second name of the same file: readers refuse a symbolic link that leads out of a graph's directory."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, copy)
