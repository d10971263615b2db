"""The process that the vendor's libraries are loaded in: `python -m octavo_edge.targets.qnn_htp.child JOB RESULT`.

They may crash, and then take this process alone with them. A job is a JSON file with the provider's options and the
graphs, in the order in which they are done; what came of each is in RESULT.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from octavo_edge.memory import PeakMemory

_EP = "QNNExecutionProvider"
_ERRORS_ONLY = 3
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let Linux kill this process when the one that started it is gone, however that ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main(job_path: str, result_path: str) -> int:
    """Do a job; the exit code is 0 if all graphs were done."""
    end_with_parent()
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    job = json.loads(Path(job_path).read_text())
    ort.set_default_logger_severity(_ERRORS_ONLY)
    ort.register_execution_provider_library(_EP, qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == _EP]
    options = {"backend_path": qnn.get_qnn_htp_path(), **job["options"]}
    done: list[dict[str, Any]] = []
    for index, graph in enumerate(job["graphs"]):
        started = perf_counter()
        settings = ort.SessionOptions()
        settings.log_severity_level = _ERRORS_ONLY
        settings.intra_op_num_threads = job["num_threads"]
        # The front end's own rewriting moves transposes between a Q and its DQ.
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        for key, value in _entries(graph, is_last=index == len(job["graphs"]) - 1).items():
            settings.add_session_config_entry(key, value)
        settings.add_provider_for_devices(devices, options)
        session = ort.InferenceSession(graph["model"], settings)
        entry: dict[str, Any] = {"compile_seconds": perf_counter() - started}
        if "calls" in graph:
            entry["run_seconds"] = [_run(session, call) for call in graph["calls"]]
        done.append(entry)
        del session
    Path(result_path).write_text(json.dumps({"graphs": done, "peak_rss_bytes": PeakMemory().peak_bytes()}))
    return 0


def _entries(graph: dict[str, Any], *, is_last: bool) -> dict[str, str]:
    # A graph that the compiler cannot take whole would run on the CPU, silently.
    entries = {"session.disable_cpu_ep_fallback": "1"}
    if "context" in graph:
        entries |= {
            "ep.context_enable": "1",
            "ep.context_file_path": graph["context"],
            "ep.context_embed_mode": "0",
        }
        if graph["shares"]:
            entries["ep.share_ep_contexts"] = "1"
            if is_last:
                entries["ep.stop_share_ep_contexts"] = "1"
    return entries


def _run(session: Any, call: dict[str, str]) -> float:
    """One run from a file of inputs to a file of outputs; takes seconds."""
    with np.load(call["inputs"]) as file:
        feeds = {value.name: file[value.name] for value in session.get_inputs()}
    started = perf_counter()
    values = session.run(None, feeds)
    seconds = perf_counter() - started
    named = {value.name: array for value, array in zip(session.get_outputs(), values, strict=True)}
    np.savez(call["outputs"], **named)
    return seconds


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
