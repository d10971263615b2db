"""The ``metadata.json`` of a bundle: what the device's runner reads first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo_device.bundle import FORMAT, METADATA_FILE, VERSION, VERSION_WITH_PREFIX, TablePlace
from octavo_device.spec import GraphSpec
from octavo_edge.artifacts import file_digest
from octavo_edge.graph.blob import Blob
from octavo_edge.graph.manifest import ExportManifest, PartGraph

__all__ = ["Facts", "write_metadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the metadata tells besides graphs and files."""

    model: str
    recipe: str
    target: str
    outcome: str
    eos_token_ids: Sequence[int]
    prompt_prefix_ids: Sequence[int]
    versions: Mapping[str, str]


def write_metadata(
    out: Path, facts: Facts, spec: GraphSpec, manifest: ExportManifest, blob: Blob, embedding: TablePlace | None
) -> None:
    """Write it into a bundle's folder, whose files are all there."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    document = {
        "format": FORMAT,
        # An older runner would run the graphs without the prefix.
        "version": VERSION if manifest.prefix is None else VERSION_WITH_PREFIX,
        **asdict(facts),
        "runtime": blob.runtime,
        "extra": dict(blob.extra),
        "context_length": spec.context_length,
        "ars": list(spec.ars),
        "spec": spec.to_json(),
        "parts": [
            {
                "name": part.name,
                "kind": part.kind,
                "layers": list(part.layers),
                "graphs": {
                    str(graph.ar): _graph(graph, blob.graphs.get(part.name, {}).get(graph.ar, {}))
                    for graph in part.graphs
                },
            }
            for part in manifest.parts
        ],
        "embedding": None if embedding is None else asdict(embedding),
        **({} if manifest.prefix is None else {"prefix": asdict(manifest.prefix)}),
        "files": {
            path.relative_to(out).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
            for path in files
        },
    }
    (out / METADATA_FILE).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _graph(graph: PartGraph, delivered: Mapping[str, str]) -> dict[str, Any]:
    return {
        **delivered,
        "vectors": graph.vectors,
        "inputs": [asdict(tensor) for tensor in graph.inputs],
        "outputs": [asdict(tensor) for tensor in graph.outputs],
    }
