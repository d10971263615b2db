"""The hand-written decoder as a bundle, and the runner that a device has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from unit.edge.exported import exported, optimised_toy, quantised
from unit.edge.small_models import context

from octavo_edge.artifacts import Bundle, CompiledBlob, ExportedModel
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.recipe import Recipe
from octavo_edge.stage import StageOutcome
from octavo_edge.stages.compile import Compile
from octavo_edge.stages.deploy import Deploy
from octavo_edge.target import Target
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

DEVICE = Path(__file__).parents[3] / "device"
# All that a runner may import besides the standard library.
ALLOWED = ("numpy", "onnxruntime", "tokenizers", "octavo_device")
_BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {(*ALLOWED, "_distutils_hack")!r}:
            raise ModuleNotFoundError(name + " is not on this device", name=name)
sys.meta_path.insert(0, Blocker())
import runpy
sys.argv[0] = "octavo-device"
runpy.run_module("octavo_device", run_name="__main__")
"""


def bundled(folder: Path, *, recipe: Recipe | None = None, split: SplitOptions | None = None, **toy: object) -> Path:
    """A bundle for ONNX Runtime."""
    source = optimised_toy(folder / "optimised", **toy)
    graphs = quantised(source, folder / "quantised", *([] if recipe is None else [recipe]))
    model, _ = exported(graphs, folder / "exported", split)
    return deployed(model, folder)[0].path


def deployed(model: ExportedModel, folder: Path, target: Target | None = None) -> tuple[Bundle, StageOutcome]:
    """The bundle of an exported model, and what the stage told."""
    compiling, deploying = context(folder / "compiled"), context(folder / "bundle")
    Compile(target=target or OnnxRuntimeTarget()).run(model, compiling)
    outcome = Deploy(model="toy", recipe="fast", replays=True).run(
        CompiledBlob(path=compiling.out, digest="3" * 64), deploying
    )
    return Bundle(path=deploying.out, digest="4" * 64), outcome


def device(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the runner where nothing else of Octavo, and no other library, can be imported."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(DEVICE)!r})\n{_BLOCKER}",
            *map(str, arguments),
        ],
        env={**env, "OMP_NUM_THREADS": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def change_metadata(bundle: Path, **changes: object) -> None:
    """Write other values into a bundle's metadata."""
    file = bundle / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def parts_without_files(bundle: Path) -> list[dict[str, object]]:
    """The metadata's parts as a target leaves them that puts all into one file: no graph has one of its own."""
    parts = json.loads((bundle / "metadata.json").read_text())["parts"]
    for graph in (graph for part in parts for graph in part["graphs"].values()):
        graph.pop("file", None)
    return parts
