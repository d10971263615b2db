"""Builds one TensorRT-RTX engine, in a process of its own: `python -m octavo_edge.toolchain.tensorrt_rtx_build`.

Takes an `Order` as JSON on stdin, writes the engine and answers with JSON on the last line of stdout.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["BuilderFailed", "Order", "build_in_process"]

# Least, usual and greatest shape of an input.
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

# Of one engine.
TIMEOUT_S = 3600.0


class BuilderFailed(RuntimeError):
    """No engine was built; the message has TensorRT's words, with the names of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build. `profile` has the shapes of the inputs whose shapes are open."""

    onnx: str
    engine: str
    compute_capability: int
    profile: Mapping[str, Shapes]


def build_in_process(order: Order, *, timeout_s: float = TIMEOUT_S) -> int:
    """Build in a process of its own, whose crash is its own; returns the engine's bytes.

    Raises:
        BuilderFailed: It could not, crashed, or took longer than ``timeout_s``.
    """
    command = [sys.executable, "-m", "octavo_edge.toolchain.tensorrt_rtx_build"]
    try:
        run = subprocess.run(
            command, input=json.dumps(asdict(order)), capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise BuilderFailed(f"TensorRT-RTX was not done with {Path(order.onnx).name} after {timeout_s:.0f} s") from None
    if run.returncode < 0:
        raise BuilderFailed(f"TensorRT-RTX ended with signal {-run.returncode} while it built {Path(order.onnx).name}")
    if run.returncode:
        raise BuilderFailed(f"TensorRT-RTX failed: {' '.join(run.stderr.split())[-500:]}")
    answer = json.loads(run.stdout.splitlines()[-1])
    if answer["errors"]:
        raise BuilderFailed("; ".join(answer["errors"]))
    return int(answer["size_bytes"])


def main() -> None:
    """Read the order, build, answer."""
    value = json.load(sys.stdin)
    order = Order(**value)
    errors, engine = _build(order)
    if engine is not None:
        Path(order.engine).write_bytes(engine)
    answer = {"errors": errors, "size_bytes": 0 if engine is None else len(engine)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


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
    main()
