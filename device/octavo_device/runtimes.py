"""What runs a bundle's graphs: a session for one graph, by the name of the runtime that it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import Bundle, BundleGraph
from octavo_device.errors import BundleDamaged, RuntimeMissing

__all__ = ["RUNS_IN_PROCESS", "Session", "make_session"]

# Those that run wherever the builder does, and cannot take it down with them.
RUNS_IN_PROCESS = frozenset({"onnxruntime"})

Arrays = dict[str, NDArray[Any]]
_ERRORS_ONLY = 3
_QNN = "QNNExecutionProvider"


class Session(Protocol):
    """One loaded graph."""

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs by name."""
        ...


def make_session(bundle: Bundle, graph: BundleGraph) -> Session:
    """Load a graph.

    Raises:
        RuntimeMissing: What the bundle was compiled for is not here.
        BundleDamaged: The file cannot be loaded.
    """
    maker = _MAKERS.get(bundle.runtime)
    if maker is None:
        raise RuntimeMissing(
            f"the bundle is for the runtime {bundle.runtime!r}, which this runner does not drive",
            hint="it was compiled for the device: run it there, with that runtime's own tools",
        )
    return maker(bundle, graph)


class _OrtSession:
    """A session of ONNX Runtime. Inputs are read where they lie, so contiguous ones are not copied."""

    def __init__(self, bundle: Bundle, graph: BundleGraph, provider: str, options: Mapping[str, str]) -> None:
        import onnxruntime

        assert graph.file is not None, "the host does the other parts"
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = _ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(
                str(bundle.path(graph.file)), settings, providers=[provider], provider_options=[dict(options)]
            )
        except Exception as error:  # the library raises bare classes of its own
            first = " ".join(str(error).split())[:300]
            raise BundleDamaged(
                f"{graph.file} cannot be loaded: {first}", hint="`verify` says which file is damaged"
            ) from None
        self._outputs = [tensor.name for tensor in graph.outputs]
        self._inputs = [tensor.name for tensor in graph.inputs]

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs by name."""
        values = self._session.run(self._outputs, {name: feeds[name] for name in self._inputs})
        return {name: np.asarray(value) for name, value in zip(self._outputs, values, strict=True)}


def _onnxruntime(bundle: Bundle, graph: BundleGraph) -> Session:
    _check_onnxruntime("CPUExecutionProvider")
    return _OrtSession(bundle, graph, "CPUExecutionProvider", {})


def _onnxruntime_qnn(bundle: Bundle, graph: BundleGraph) -> Session:
    """From the EPContext file that points at the device's binary."""
    _check_onnxruntime(_QNN)
    return _OrtSession(bundle, graph, _QNN, bundle.extra.get("provider_options", {}))


def _check_onnxruntime(provider: str) -> None:
    try:
        import onnxruntime
    except ImportError:
        raise RuntimeMissing("onnxruntime is not installed", hint="pip install onnxruntime") from None
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeMissing(
            f"this onnxruntime has no {provider}", hint="the bundle was compiled for the device: run it there"
        )


_MAKERS: Mapping[str, Callable[[Bundle, BundleGraph], Session]] = {
    "onnxruntime": _onnxruntime,
    "onnxruntime-qnn": _onnxruntime_qnn,
}
