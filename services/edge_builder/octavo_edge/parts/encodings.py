"""The encodings of a part: those of the whole graph's whose tensors it has, in the file's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from octavo_edge.parts.splitting import PartModel

__all__ = ["split_encodings"]

_LISTS = ("activation_encodings", "param_encodings", "encodings")  # of schema 1.0.0 the first two, of 2.0.0 the last


def split_encodings(document: Mapping[str, Any], part: PartModel) -> dict[str, Any]:
    """A part's document of the same schema. Entries are kept as they are but for the names of tensors at borders."""
    tensors = _tensors(part.model)
    result = dict(document)
    for key in _LISTS:
        if key in document:
            named = [{**entry, "name": part.renamed.get(entry["name"], entry["name"])} for entry in document[key]]
            # The integers of x, be it a weight or an activation, are called x_q.
            result[key] = [entry for entry in named if f"{entry['name']}_q" in tensors]
    return result


def _tensors(model: ModelProto) -> set[str]:
    graph = model.graph
    return {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
