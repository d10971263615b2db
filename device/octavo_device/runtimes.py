"""What runs a bundle's graphs: a session for one graph, by the name of the runtime that it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_device.bundle import Bundle, BundleGraph
from octavo_device.errors import BundleDamaged, RuntimeMissing
from octavo_device.qnn import check_qnn, qnn_settings

__all__ = ["Session", "check_driven", "make_session"]

Arrays = dict[str, NDArray[Any]]
_ERRORS_ONLY = 3


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
    check_driven(bundle)
    return _MAKERS[bundle.runtime](bundle, graph)


def check_driven(bundle: Bundle) -> None:
    """Refuse a bundle whose runtime has tools of its own, before anything of it is looked for.

    Raises:
        RuntimeMissing: Names the runtime.
    """
    if bundle.runtime not in _MAKERS:
        raise RuntimeMissing(
            f"the bundle is for the runtime {bundle.runtime!r}, which this runner does not drive",
            hint="it was compiled for the device: run it there, with that runtime's own tools",
        )


class _OrtSession:
    """A session of ONNX Runtime. Inputs are read where they lie, so contiguous ones are not copied."""

    def __init__(self, bundle: Bundle, graph: BundleGraph, settings: Any, **arguments: Any) -> None:
        import onnxruntime

        assert graph.file is not None, "the host does the other parts"
        settings.log_severity_level = _ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(str(bundle.path(graph.file)), settings, **arguments)
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
    return _OrtSession(bundle, graph, _onnxruntime_here().SessionOptions(), providers=["CPUExecutionProvider"])


def _onnxruntime_qnn(bundle: Bundle, graph: BundleGraph) -> Session:
    """From the EPContext file that points at the device's binary."""
    _onnxruntime_here()
    check_qnn(bundle)
    settings, arguments = qnn_settings(bundle)
    return _OrtSession(bundle, graph, settings, **arguments)


def _onnxruntime_here() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise RuntimeMissing("onnxruntime is not installed", hint="pip install onnxruntime") from None
    return onnxruntime


_MAKERS: Mapping[str, Callable[[Bundle, BundleGraph], Session]] = {
    "onnxruntime": _onnxruntime,
    "onnxruntime-qnn": _onnxruntime_qnn,
}
