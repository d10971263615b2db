"""The embedding's table of an exported model as a file that a host looks rows up in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from octavo_device.bundle import TablePlace
from octavo_edge.artifacts import file_digest
from octavo_edge.graph.manifest import ExportManifest
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.quant.topology import Topology

__all__ = ["write_table"]

TABLE_FILE, SCALES_FILE = "embedding.bin", "embedding_scales.bin"


def write_table(model: Path, manifest: ExportManifest, delivered: Path, out: Path) -> TablePlace | None:
    """Where the rows are: in the weights that a target ``delivered``, else in a file of their own in ``out``.

    None if the model has no part for the embedding. Scales by row get a file of their own.
    """
    part = next((part for part in manifest.parts if part.kind == "embedding"), None)
    if part is None:
        return None
    graph = Topology(model / part.graphs[-1].file)
    node = next(node for node in graph.nodes if node.op_type == "Gather" and node.input[1] == "input_ids")
    made = graph.producer.get(node.input[0])
    names = [node.input[0]] if made is None else list(graph.nodes[made].input)
    table = graph.constants[names[0]]
    assert len(table.dims) == 2, "a row for each token"
    place = TablePlace(
        file=TABLE_FILE,
        offset=0,
        dtype=_dtype(table),
        shape=(table.dims[0], table.dims[1]),
    )
    if made is not None:
        assert graph.nodes[made].op_type == "DequantizeLinear"
        place = _scaled(graph, names, place, out)
    assert place.dtype != "int4" or table.dims[1] % 2 == 0, "rows of whole bytes"
    weights = delivered / WEIGHTS_FILE
    if graph.is_external(names[0]) and weights.is_file() and file_digest(weights) == file_digest(model / WEIGHTS_FILE):
        entries = {entry.key: entry.value for entry in table.external_data}
        return replace(place, file=WEIGHTS_FILE, offset=int(entries.get("offset", 0)))
    (out / TABLE_FILE).write_bytes(graph.tensor(names[0]).raw_data)
    return place


def _dtype(table: onnx.TensorProto) -> str:
    if table.data_type == onnx.TensorProto.INT4:
        return "int4"
    return onnx.helper.tensor_dtype_to_np_dtype(table.data_type).name


def _scaled(graph: Topology, names: list[str], place: TablePlace, out: Path) -> TablePlace:
    scales = graph.constant(names[1]).astype(np.float32)
    # Of 4-bit tables the zero point is 0: they are symmetric.
    zero_point = graph.constant(names[2]) if len(names) > 2 and names[2] and place.dtype != "int4" else np.zeros(1)
    assert not zero_point.ndim or not zero_point.any(), "one zero point for all rows"
    if not scales.ndim:
        return replace(place, scale=float(scales), zero_point=int(zero_point))
    assert scales.shape == place.shape[:1], "a scale for each row"
    (out / SCALES_FILE).write_bytes(np.ascontiguousarray(scales).tobytes())
    return replace(place, scales_file=SCALES_FILE)
