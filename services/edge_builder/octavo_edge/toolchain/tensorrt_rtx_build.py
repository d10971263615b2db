"""Builds one TensorRT-RTX engine in a process of its own: the child takes an `Order` and writes the engine."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo_edge.toolchain.process import TIMEOUT_S, LibraryFailed, answer, ask

__all__ = ["Order", "build_in_process"]

# Least, usual and greatest shape of an input.
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build. `profile` has the shapes of the inputs whose shapes are open."""

    onnx: str
    engine: str
    compute_capability: int
    profile: Mapping[str, Shapes]


def build_in_process(order: Order, *, timeout_s: float = TIMEOUT_S) -> int:
    """Build in a process of its own; returns the engine's bytes.

    Raises:
        LibraryFailed: It could not, with its words and the names of nodes; it crashed, or took longer than
            ``timeout_s``.
    """
    told = ask(__name__, asdict(order), what=f"TensorRT-RTX, {Path(order.onnx).name}", timeout_s=timeout_s)
    if told["errors"]:
        raise LibraryFailed("; ".join(told["errors"]))
    return int(told["size_bytes"])


def _work(told: Mapping[str, Any]) -> dict[str, Any]:
    order = Order(**told)
    errors, engine = _build(order)
    if engine is not None:
        Path(order.engine).write_bytes(engine)
    return {"errors": errors, "size_bytes": 0 if engine is None else len(engine)}


def _build(order: Order) -> tuple[list[str], bytes | None]:
    trt: Any = importlib.import_module("tensorrt_rtx")
    told: list[str] = []

    class Logger(trt.ILogger):
        """Keeps what is said of errors."""

        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                told.append(message)

    builder = trt.Builder(Logger())
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, Logger())
    if not parser.parse_from_file(order.onnx):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        return [f"{error.node_name()} ({error.node_operator()}): {error.desc()}" for error in errors], None
    config = builder.create_builder_config()
    if order.profile:
        profile = builder.create_optimization_profile()
        for name, shapes in order.profile.items():
            profile.set_shape(name, *shapes)
        config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{order.compute_capability}"), 0)
    built = builder.build_serialized_network(network, config)
    if built is None:
        return told or ["no engine was built, and nothing was said of why"], None
    return [], bytes(built)


if __name__ == "__main__":
    answer(_work)
