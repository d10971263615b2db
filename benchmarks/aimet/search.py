"""Our SeqMSE by itself, in a process of its own as AIMET's is.

Usage: python -m benchmarks.aimet.search TASK.json ANSWER.json

A task names a folder of float graphs, folders of batches and the number of candidates; the answer tells seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.aimet.ours import methods, search_alone
from benchmarks.aimet.processor import processor_s

from octavo_device.spec import graph_file, read_spec
from octavo_edge.quant.batches import StoredBatch
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.placement import place
from octavo_edge.quant.planning import plan_of
from octavo_edge.quant.topology import Topology


def search(folder: Path, calibration: Sequence[Path], num_candidates: int) -> dict[str, float]:
    """Seconds by the clock and of processors, of the layers' weights and nothing else."""
    spec = read_spec(folder)
    graph = Topology(folder / graph_file(spec.ars[0]))
    method = methods(num_candidates=num_candidates, num_search_batches=len(calibration))["SeqMSE"]
    plan = plan_of(search_alone(method.recipe))
    # Read beforehand, as AIMET's are.
    inputs = {tensor.name: tensor for tensor in spec.inputs(spec.ars[0])}
    batches = [dict(StoredBatch(batch, inputs)) for batch in calibration]
    started, cpu_started = time.perf_counter(), processor_s()
    placement = place(graph, float_residual=plan.activations.float_residual)
    quantise_graph(graph, placement, plan, batches, lambda *_: None)
    return {"clock_s": time.perf_counter() - started, "processor_s": processor_s() - cpu_started}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    calibration = [Path(folder) for folder in task["calibration"]]
    answer = search(Path(task["folder"]), calibration, task["num_candidates"])
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
