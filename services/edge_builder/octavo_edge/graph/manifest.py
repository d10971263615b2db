"""What an exported model consists of: parts, a graph of each for every number of new tokens, inputs and outputs.

Tensors between parts are ``hidden_0`` (out of the embedding) and ``hidden_k`` (out of the k-th decoder part, counted
from 1); the head makes ``logits`` of the last. Caches keep the number that their layer has in the whole model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from octavo_device.bundle import PrefixPlace

__all__ = ["ExportManifest", "Part", "PartGraph", "PartTensor", "SplitOptions", "read_manifest", "write_manifest"]

FORMAT, VERSION = "octavo-edge-export", 1
MANIFEST_FILE = "manifest.json"
PartKind = Literal["embedding", "decoder", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """Where a model is cut. Without a part for it, the embedding is in the first decoder part, the head in the last."""

    embedding: bool = True
    head: bool = True
    num_decoder_parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTensor:
    """One input or output. ``dtype`` is numpy's name; scale and zero point are those of its encoding, if it has one.

    The real value of an integer q is ``(q - zero_point) * scale``; ``quantised_dtype`` is the integer's type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None
    quantised_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGraph:
    """A part's graph for ``ar`` new tokens. Files are named relative to the manifest."""

    ar: int
    file: str
    vectors: str  # an npz file with arrays named "{call}/{tensor}"
    inputs: tuple[PartTensor, ...]
    outputs: tuple[PartTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of the model; ``layers`` are [first, stop) of the whole model's, empty for embedding and head."""

    name: str
    kind: PartKind
    layers: tuple[int, int]
    graphs: tuple[PartGraph, ...]  # the largest AR first
    encodings: str  # schema 2.0.0
    encodings_v1: str

    def graph(self, ar: int) -> PartGraph:
        """The graph for ``ar`` new tokens."""
        return next(graph for graph in self.graphs if graph.ar == ar)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """All parts in the order in which they run, and the prefix that every sequence has before it."""

    context_length: int
    ars: tuple[int, ...]  # the largest first
    parts: tuple[Part, ...]
    prefix: PrefixPlace | None = None

    def to_json(self) -> dict[str, Any]:
        """As ``manifest.json`` holds it."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExportManifest:
        """The inverse of ``to_json``."""
        return cls(
            context_length=value["context_length"],
            ars=tuple(value["ars"]),
            parts=tuple(_part(part) for part in value["parts"]),
            prefix=None if value.get("prefix") is None else PrefixPlace.from_json(value["prefix"]),
        )


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an exported model."""
    return ExportManifest.from_json(json.loads((folder / MANIFEST_FILE).read_text()))


def write_manifest(folder: Path, manifest: ExportManifest) -> None:
    """Write ``manifest.json``."""
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest.to_json(), indent=1) + "\n")


def _part(value: Mapping[str, Any]) -> Part:
    graphs = tuple(
        PartGraph(**{**graph, "inputs": _tensors(graph["inputs"]), "outputs": _tensors(graph["outputs"])})
        for graph in value["graphs"]
    )
    return Part(**{**value, "layers": tuple(value["layers"]), "graphs": graphs})


def _tensors(values: list[Mapping[str, Any]]) -> tuple[PartTensor, ...]:
    return tuple(PartTensor(**{**value, "shape": tuple(value["shape"])}) for value in values)
