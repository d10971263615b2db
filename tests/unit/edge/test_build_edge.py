"""The whole build of a small model at the command line: what it delivers, and how it goes on after any end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from checkpoints import make_llama

from octavo_device.command import main as device
from octavo_edge import app
from octavo_edge.__main__ import main
from octavo_edge.artifacts import ExportedModel
from octavo_edge.target import CompileOptions, CompileResult
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

STAGES = ["adapt", "optimise", "quantise", "export", "compile", "deploy"]
RECIPE = """
calibration: {num_windows: 2}
evaluation: {num_windows: 1}
"""


class Place:
    """A checkpoint, recipes, and a store that the tests of this file share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_llama(folder / "tiny", max_position_embeddings=64)
        (folder / "quick.yaml").write_text(RECIPE)
        (folder / "strict.yaml").write_text(RECIPE + "gates: {min_sqnr_db: 1000}\n")
        (folder / "other.yaml").write_text(RECIPE + "precision: {kv_cache: int16}\n")

    def arguments(
        self, out: str, *more: str, recipe: str = "quick.yaml", store: str = "store", target: str = "onnxruntime"
    ) -> list[str]:
        paths = [self.folder / "tiny", self.folder / out, self.folder / recipe, self.folder / store]
        model, place, recipe_file, kept = map(str, paths)
        given = ["build", model, "--target", target, "--out", place, "--recipe", recipe_file, "--store", kept]
        return [*given, "--context-length", "32", "--ar", "8,1", *more]

    def build(self, out: str, *more: str, **options: str) -> tuple[int, list[str]]:
        """The exit code and what was said."""
        told = io.StringIO()
        with redirect_stderr(told):
            code = main(["--debug", *self.arguments(out, *more, **options)])
        return code, told.getvalue().splitlines()

    def start(self, out: str, *, store: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        command = [sys.executable, "-m", "octavo_edge", *self.arguments(out, store=store)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("edge"))


@pytest.fixture(scope="module")
def built(place):
    code, told = place.build("out")
    assert code == 0, told
    return place.folder / "out"


def ends(told: list[str]) -> list[tuple[str, bool]]:
    """Stages that ended, and whether their result was there before; of any target."""
    return [(re.split(":| for ", line)[0], "as before" in line) for line in told if ": done, " in line]


def test_the_delivery_has_what_a_device_needs(built):
    names = {path.name for path in built.iterdir()}
    assert {"metadata.json", "weights.data", "tokenizer.json", "vectors", "encodings", "report.json"} <= names
    document = json.loads((built / "report.json").read_text())
    assert [stage["stage"] for stage in document["stages"]] == STAGES
    assert document["outcome"] == "compiled+run"
    assert all(stage["size_bytes"] > 0 and stage["peak_rss_bytes"] > 0 for stage in document["stages"])
    assert str(built.parent) not in (built / "report.html").read_text()


def test_the_delivered_graph_runs(built):
    session = onnxruntime.InferenceSession(built / "head_ar8.onnx")
    with np.load(built / "vectors" / "head_ar8.npz") as vectors:
        logits = session.run(["logits"], {"hidden_1": vectors["1/hidden_1"]})[0]
        np.testing.assert_array_equal(logits, vectors["1/logits"])
    assert logits.shape == (1, 8, 330)


def test_another_build_makes_nothing_twice(place, built):
    code, told = place.build("again")
    assert (code, ends(told)) == (0, [(stage, True) for stage in STAGES])


def test_another_recipe_starts_at_quantise(place, built):
    code, told = place.build("other", recipe="other.yaml")
    assert code == 0
    assert ends(told) == [
        ("adapt", True),
        ("optimise", True),
        ("quantise", False),
        ("export", False),
        ("compile", False),
        ("deploy", False),
    ]


def test_a_gate_that_fails_is_told_and_keeps_all(place, built):
    code, told = place.build("strict", recipe="strict.yaml")
    assert code == 3
    assert "sqnr_db >= 1000 does not hold" in told[-1]
    assert "lost most" in told[-1]
    assert not (place.folder / "strict").exists()
    document = json.loads((place.folder / "strict-failed" / "report.json").read_text())
    assert document["outcome"].startswith("failed: quantise: sqnr_db")
    # Fails at once, without another run.
    assert ends(told) == [(stage, True) for stage in STAGES[:3]]

    # Somebody's own directory of that name stays, and hides no reason.
    (place.folder / "mine-failed").mkdir()
    (place.folder / "mine-failed" / "notes.txt").write_text("words")
    assert place.build("mine", recipe="strict.yaml")[0] == 3
    assert [path.name for path in (place.folder / "mine-failed").iterdir()] == ["notes.txt"]

    # A build that is good enough takes the place of the report.
    assert place.build("strict")[0] == 0
    assert (place.folder / "strict" / "head_ar8.onnx").exists()
    assert not (place.folder / "strict-failed").exists()


class Crashing(OnnxRuntimeTarget):
    """A tool-chain that takes the graphs and then fails."""

    profile = replace(OnnxRuntimeTarget().profile, name="crashing")

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        raise RuntimeError(f"the vendor's library ended with signal 11 at {out}/decoder.bin")


class Absent(OnnxRuntimeTarget):
    """A tool-chain that is not installed."""

    profile = replace(OnnxRuntimeTarget().profile, name="absent")

    def missing(self) -> list[str]:
        return ["the package abacus is not installed"]


def test_a_target_that_fails_fails_alone(place, built, monkeypatch):
    for name, target in (("crashing", Crashing), ("absent", Absent)):
        monkeypatch.setitem(app.TARGETS, name, target)
    code, told = place.build("several", target="crashing,onnxruntime,absent")
    assert code == 1
    # What all targets share was there, and only what fails is not made.
    assert [stage for stage, cached in ends(told) if cached] == STAGES
    # Each stage that is one target's own says whose it is, as it begins and as it ends.
    begun = [line.partition(":")[0] for line in told if ": 0/" in line]
    assert "compile for crashing" in begun and "compile for onnxruntime" not in begun
    done = [line.partition(":")[0] for line in told if ": done, " in line]
    assert done == [*STAGES[:4], "compile for onnxruntime", "deploy for onnxruntime"]
    out = place.folder / "several"
    assert {path.name for path in out.iterdir()} == {"onnxruntime", "report.json", "report.html"}
    assert (out / "onnxruntime" / "metadata.json").read_bytes() == (built / "metadata.json").read_bytes()
    document = json.loads((out / "report.json").read_text())
    found = {target["name"]: (target["failed"], target["outcome"]) for target in document["targets"]}
    assert found["onnxruntime"] == (False, "compiled+run")
    # Who builds here is told where; the report may be read by others.
    assert any(f"signal 11 at {place.folder}/store/drafts" in line for line in told)
    said = "failed: RuntimeError: the vendor's library ended with signal 11 at .../decoder.bin"
    assert found["crashing"] == (True, said)
    assert str(place.folder) not in (out / "report.json").read_text() + (out / "report.html").read_text()
    assert (
        found["absent"][1].startswith("unavailable: ") and "the package abacus is not installed" in found["absent"][1]
    )
    page = (out / "report.html").read_text()
    assert "signal 11" in page and "abacus" in page

    code, told = place.build("none", target="crashing,absent")
    assert code == 1
    assert not (place.folder / "none").exists()
    document = json.loads((place.folder / "none-failed" / "report.json").read_text())
    assert [target["failed"] for target in document["targets"]] == [True, True]
    assert "signal 11" in document["targets"][0]["outcome"]

    assert place.build("alone", target="absent")[0] == 1
    assert place.build("twice", target="onnxruntime,onnxruntime")[0] == 0


def test_single_heads_in_two_parts_with_chosen_passes(place, built, capsys):
    passes = "fold_constants,split_sequences,constant_second,remove_dead_code,name_by_module"
    code, told = place.build("heads", "--attention", "sha", "--parts", "2", "--passes", passes)
    assert code == 0, told
    out = place.folder / "heads"
    document = json.loads((out / "report.json").read_text())
    stages = {stage["stage"]: stage for stage in document["stages"]}
    # Against transformers, against torch, and against the graph before the cut.
    for stage in ("adapt", "optimise", "export"):
        assert float(stages[stage]["outcome"]["metrics"]["worst_sqnr_db"]) >= 100
    assert stages["adapt"]["outcome"]["details"]["attention"] == "sha"
    parts = [part["name"] for part in json.loads((out / "metadata.json").read_text())["parts"]]
    assert parts == ["embedding", "decoder_1_of_2", "decoder_2_of_2", "head"]
    assert device(["verify", str(out)]) == 0
    assert "reach 60 dB" in capsys.readouterr().out


@pytest.mark.slow  # two processes that import torch, and two exports; test_pipeline_edge does it with quick stages
@pytest.mark.parametrize(
    ("number", "code", "stage"),
    [
        (signal.SIGKILL, -signal.SIGKILL, "optimise"),
        (signal.SIGINT, 130, "optimise"),
        (signal.SIGKILL, -signal.SIGKILL, "export"),
        (signal.SIGKILL, -signal.SIGKILL, "deploy"),
    ],
)
def test_goes_on_at_the_stage_where_it_was_stopped(place, number, code, stage):
    store, num_done = f"store-{number.name}-{stage}", STAGES.index(stage)
    process = place.start("stopped", store=store)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith((f"{stage}:", f"{stage} for ")):
            break
    process.send_signal(number)
    told = process.communicate(timeout=100)[1]
    assert process.returncode == code
    assert "Traceback" not in told
    assert not (place.folder / "stopped").exists()
    assert len(list((place.folder / store / "objects").iterdir())) == num_done

    after, told = place.build(f"after-{number.name}-{stage}", store=store)
    assert after == 0, told
    assert ends(told) == [(name, index < num_done) for index, name in enumerate(STAGES)]
    assert list((place.folder / store / "drafts").iterdir()) == []
