"""Whether a rewritten graph computes what the graph before it did, on random inputs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph

__all__ = ["outputs_of", "random_feeds", "worst_output"]

Arrays = dict[str, NDArray[Any]]


def random_feeds(model: ModelProto, *, vocab_size: int, seed: int = 0) -> Arrays:
    """Inputs of the graph's shapes: token ids, else normal numbers; a mask hides about half of what it could show."""
    generator = np.random.default_rng(seed)
    feeds: Arrays = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.elem_type == TensorProto.INT64:
            feeds[value.name] = generator.integers(0, vocab_size, shape)
            continue
        numbers = generator.standard_normal(shape)
        if value.name == "attention_mask":
            # The last column stays visible: a row that sees nothing has no softmax.
            numbers = np.where((numbers > 0) & (np.arange(shape[-1]) < shape[-1] - 1), -100.0, 0.0)
        feeds[value.name] = numbers.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


def outputs_of(model: ModelProto, feeds: Mapping[str, NDArray[Any]], *, folder: Path) -> Arrays:
    """Run the graph node by node as it stands; `folder` is where its external data is."""
    path = folder / "candidate.onnx"
    onnx.save(model, str(path))
    try:
        return OrtGraph(path, optimise=False).run(feeds)
    finally:
        path.unlink()


def worst_output(expected: Mapping[str, NDArray[Any]], got: Mapping[str, NDArray[Any]]) -> tuple[str, float]:
    """The output that differs most, and its ratio of signal to noise in decibels; outputs must be the same ones."""
    assert expected.keys() == got.keys(), "a pass keeps the graph's outputs"
    losses = {name: sqnr_db(expected[name], got[name]) for name in expected}
    return min(losses.items(), key=lambda item: item[1])
