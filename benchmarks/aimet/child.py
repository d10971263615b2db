"""Runs AIMET on one task, in AIMET's own environment: ``python child.py TASK.json ANSWER.json``.

A task names a float graph, folders of batches and how to quantise; the answer tells seconds and which quantisers AIMET
placed. Needs aimet_onnx, onnx and numpy, and nothing of the project.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from aimet_onnx import (  # pyright: ignore[reportMissingImports] - it is installed in the other environment
    QuantizationSimModel,
    apply_seq_mse,
    encodings_to_onnx_qdq,
    int4,
    int8,
    int16,
)
from aimet_onnx.quantsim import (  # pyright: ignore[reportMissingImports]
    load_encodings_to_sim,
    set_grouped_blockwise_quantization_for_weights,
)
from processor import processor_s  # pyright: ignore[reportMissingImports] - it lies beside this file

_WEIGHTS = {4: int4, 8: int8}


def quantise(
    graph: str,
    calibration: Sequence[str],
    out: str,
    num_candidates: int,
    num_search_batches: int,
    **simulator: Any,
) -> Mapping[str, Any]:
    """AIMET's recipe: SeqMSE if there are candidates, MinMax ranges; writes its encodings and its QDQ graph."""
    model = onnx.load(graph)
    sim = _simulator(model, **simulator)
    # Read beforehand, so that the seconds are AIMET's own.
    windows = list(_Batches(model, calibration[:num_search_batches])) if num_candidates else []
    started = time.perf_counter()
    if num_candidates:
        apply_seq_mse(sim, windows, num_candidates=num_candidates, nodes_to_exclude=_readers(model, simulator["wide"]))
    search_s = time.perf_counter() - started
    del windows
    started = time.perf_counter()
    sim.compute_encodings(_Batches(model, calibration))
    calibrate_s = time.perf_counter() - started
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    _save(sim.to_onnx_qdq(prequantize_constants=True), folder / "qdq.onnx")
    enabled = sorted(name for name, q in sim.qc_quantize_op_dict.items() if q.enabled)
    return {"search_s": search_s, "calibrate_s": calibrate_s, "quantisers": enabled}


def search(graph: str, calibration: Sequence[str], num_candidates: int, **simulator: Any) -> Mapping[str, Any]:
    """The seconds of AIMET's SeqMSE, and nothing else."""
    model = onnx.load(graph)
    sim = _simulator(model, **simulator)
    # Read beforehand, so that the seconds are AIMET's own.
    batches = list(_Batches(model, calibration))
    excluded = _readers(model, simulator["wide"])
    started, cpu_started = time.perf_counter(), processor_s()
    apply_seq_mse(sim, batches, num_candidates=num_candidates, nodes_to_exclude=excluded)
    return {"clock_s": time.perf_counter() - started, "processor_s": processor_s() - cpu_started}


def convert(graph: str, encodings: str, out: str) -> Mapping[str, Any]:
    """An encodings file and the float graph to a QDQ graph, by AIMET alone."""
    converted = encodings_to_onnx_qdq(graph, encodings, prequantize_constants=True)
    return _save(converted, Path(out) / "qdq.onnx")


def load(graph: str, encodings: str, out: str, **simulator: Any) -> Mapping[str, Any]:
    """An encodings file into a simulator of AIMET's, and that to a QDQ graph."""
    sim = _simulator(onnx.load(graph), **simulator)
    mismatches = load_encodings_to_sim(sim, encodings, strict=False)
    return {**_save(sim.to_onnx_qdq(prequantize_constants=True), Path(out) / "qdq.onnx"), "changed": len(mismatches)}


def _simulator(
    model: onnx.ModelProto, weight_bits: int, wide: Sequence[str], floats: Sequence[str], block_size: int, config: str
) -> QuantizationSimModel:
    """``wide`` are weights of 8 bits for each channel whatever the others have, ``floats`` tensors that stay float."""
    sim = QuantizationSimModel(
        model,
        param_type=_WEIGHTS[weight_bits],
        activation_type=int16,
        quant_scheme="min_max",
        config_file=config,
        providers=["CPUExecutionProvider"],
    )
    if block_size:
        set_grouped_blockwise_quantization_for_weights(
            sim,
            ("Conv", "MatMul", "Gemm"),
            bitwidth=4,
            decompressed_bw=8,
            block_size=block_size,
            nodes_to_exclude=_readers(model, wide),
        )
    for name in wide:
        sim.qc_quantize_op_dict[name].set_bitwidth(8)
    for name in floats:
        if name in sim.qc_quantize_op_dict:
            sim.qc_quantize_op_dict[name].enabled = False
    return sim


def _readers(model: onnx.ModelProto, constants: Sequence[str]) -> list[str]:
    """The names of the nodes that read constants (in a simulator: their quantised form)."""
    names = {*constants, *(f"{name}_qdq" for name in constants)}
    return [node.name for node in model.graph.node if names.intersection(node.input)]


class _Batches:
    """Batches from their folders, as often as they are asked for."""

    def __init__(self, model: onnx.ModelProto, folders: Sequence[str]) -> None:
        constants = {tensor.name for tensor in model.graph.initializer}
        self._inputs = {
            value.name: (
                tuple(d.dim_value for d in value.type.tensor_type.shape.dim),
                onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            )
            for value in model.graph.input
            if value.name not in constants
        }
        self._folders = [Path(folder) for folder in folders]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for folder in self._folders:
            yield {name: _whole(folder / f"{name}.npy", *kind) for name, kind in self._inputs.items()}

    def __len__(self) -> int:
        return len(self._folders)


def _whole(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A stored input, with the zeros that are not stored."""
    values = np.zeros(shape, dtype)
    if file.exists():
        stored = np.load(file)
        values[tuple(slice(length) for length in stored.shape)] = stored
    return values


def _save(model: onnx.ModelProto, path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "qdq.data").unlink(missing_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location="qdq.data")
    return {"num_quantisers": sum(node.op_type == "QuantizeLinear" for node in model.graph.node)}


OPERATIONS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "quantise": quantise,
    "search": search,
    "convert": convert,
    "load": load,
}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = dict(OPERATIONS[task.pop("op")](**task))
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
