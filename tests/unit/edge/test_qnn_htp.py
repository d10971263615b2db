"""The HTP of Qualcomm's SoCs: what it compiles, what its simulator computes, and what becomes of its crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime_qnn")

from unit.edge.exported_models import ARS, compiled
from unit.edge.projections import conv, quantiser, save
from unit.edge.small_models import context

from octavo_common.errors import InvalidArgument
from octavo_edge.artifacts import CompiledBlob
from octavo_edge.graph.blob import read_blob
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.stages.compile import Compile
from octavo_edge.stages.deploy import Deploy
from octavo_edge.target import CompileOptions
from octavo_edge.targets.qnn_htp.lowering import lower
from octavo_edge.targets.qnn_htp.options import read_options
from octavo_edge.targets.qnn_htp.process import ToolchainCrashed, ToolchainFailed, run_child
from octavo_edge.targets.qnn_htp.simulate import simulate
from octavo_edge.targets.qnn_htp.socs import SOCS
from octavo_edge.targets.qnn_htp.target import QnnHtpTarget


@pytest.fixture(scope="module", params=["w8", "w4"])
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def model(recipe, exports):
    return exports[recipe]


@pytest.fixture(scope="module")
def shared(model, tmp_path_factory):
    """What it makes by default: one binary for all ARs of a part, and its graphs run on the simulator."""
    return compiled(QnnHtpTarget(), model, tmp_path_factory.mktemp("shared"))


def test_lowered_parts_compute_what_the_golden_parts_do(model, tmp_path):
    for part in read_manifest(model.path).parts:
        if part.kind == "embedding":
            continue
        folder = tmp_path / part.name
        folder.mkdir()
        with WeightsWriter(folder) as weights:
            for graph in part.graphs:
                lower(model.path / graph.file, folder / graph.file.split("/")[-1], weights)
        for graph in part.graphs:
            run = OrtGraph(folder / graph.file, optimise=False).run
            for inputs, expected in read_vectors(model.path, graph):
                got = run(inputs)
                losses = {name: sqnr_db(values, got[name]) for name, values in expected.items()}
                # Keys and values of 8 bits: one of them rounded to the next step is a loss that shows.
                assert min(losses.values()) > (60 if "logits" in losses else 45), losses


def test_the_simulator_agrees_with_the_golden_run(recipe, shared):
    _, result = shared
    # The simulator ran the graphs, and nothing here the binary.
    assert str(result.outcome) == "compiled (run on device)"
    assert result.details["simulated"] == "the graphs that were compiled, not the binaries"
    losses = {name: value for name, value in result.metrics.items() if name.endswith("_worst_sqnr_db")}
    assert len(losses) == 2 * len(ARS)
    # Of w4 the decoder's worst outputs are its cache of 8 bits, which the next test judges in steps.
    judged = {name: value for name, value in losses.items() if recipe == "w8" or name.startswith("head")}
    assert min(judged.values()) > 45, losses


def test_a_cache_of_8_bits_is_the_golden_one_but_for_roundings_to_the_next_step(exports, tmp_path):
    """One value of 32 that is rounded to the next of 256 steps makes 48 dB, and two 45: decibels say little there.

    If what is rounded differs by a normal error of s steps, 0.8 s of all values land on another step: for a tenth of
    them s is 0.125, which is 45 dB or more where values are some 30 steps (root of the mean square).
    """
    model = exports["w4"]
    (part,) = (part for part in read_manifest(model.path).parts if part.kind == "decoder")
    with WeightsWriter(tmp_path) as weights:
        for graph in part.graphs:
            lower(model.path / graph.file, tmp_path / graph.file, weights)
    for graph in part.graphs:
        calls = list(read_vectors(model.path, graph))
        scratch = tmp_path / f"ar{graph.ar}"
        scratch.mkdir()
        options = read_options(CompileOptions()).provider()
        run = simulate(tmp_path / graph.file, [inputs for inputs, _ in calls], options=options, scratch=scratch)
        for (_, expected), got in zip(calls, run.outputs, strict=True):
            for tensor in graph.outputs:
                if tensor.scale is None:  # the residual stream
                    assert sqnr_db(expected[tensor.name], got[tensor.name]) > 45
                    continue
                steps = np.rint((got[tensor.name] - expected[tensor.name]) / tensor.scale)
                size = np.sqrt(np.mean(np.square(expected[tensor.name] / tensor.scale)))
                assert size > 30 and np.abs(steps).max() <= 1, tensor.name
                assert np.count_nonzero(steps) <= 0.1 * steps.size, tensor.name


def test_from_16_to_8_bits_the_hardware_rounds_halves_up(tmp_path):
    """Where 8 bits have 256 steps of 16 each, and nowhere a step off: what the lowering relies on."""
    constants, step = [], np.float32(0.03)
    nodes = quantiser("x", step / 256, 32768, constants)
    nodes += quantiser("x_dq", step, 0, constants, onnx.TensorProto.INT8)
    shape = [1, 1, 256, 256]
    path = save(tmp_path / "rounding.onnx", nodes, {"x": shape}, {"x_dq_dq": shape}, constants)
    values = np.arange(65536) - 32768
    feeds = {"x": (values * (step / 256)).astype(np.float32).reshape(shape)}
    (tmp_path / "run").mkdir()
    run = simulate(path, [feeds], options=read_options(CompileOptions()).provider(), scratch=tmp_path / "run")
    expected = np.clip(np.floor(values / 256 + 0.5), -128, 127)
    np.testing.assert_array_equal(np.rint(run.outputs[0]["x_dq_dq"].reshape(-1) / step), expected)


def test_one_binary_has_the_graphs_of_all_ars_and_their_weights_once(model, shared, tmp_path):
    out, result = shared
    blob = read_blob(out)
    assert blob.runtime == "onnxruntime-qnn"
    assert all(set(by_ar) == set(ARS) for by_ar in blob.graphs.values())
    assert all(len({entry["binary"] for entry in by_ar.values()}) == 1 for by_ar in blob.graphs.values())
    told = {entry["binary"]: entry["graphs"] for entry in result.details["binaries"]}
    assert told["head_ar8_qnn.bin"] == "head for 8, head for 1"
    alone, unshared = compiled(QnnHtpTarget(), model, tmp_path, share_weights="no", simulate="no", soc="SM8550")
    assert (str(unshared.outcome), unshared.details["simulated"]) == ("compiled (run on device)", "no")
    for part, by_ar in read_blob(alone).graphs.items():
        sizes = [(alone / entry["binary"]).stat().st_size for entry in by_ar.values()]
        both = (out / blob.graphs[part][ARS[0]]["binary"]).stat().st_size
        # Of so small a model the graphs themselves are most of a binary; what is shared is the weights.
        assert both < sum(sizes) - 0.75 * result.metrics[f"{part}_weights_bytes"]


def test_scales_of_blocks_are_in_a_binary_once_whatever_they_are_padded_with(tmp_path):
    """The compiler pads those of 65 blocks, not those of 64, and leaves there what the memory had before."""
    with WeightsWriter(tmp_path) as weights:
        for tokens in (64, 1):
            path = conv(tmp_path / f"{tokens}.onnx", channels=4160, outputs=1024, tokens=tokens, bits=4, block=64)
            lower(path, tmp_path / f"lowered{tokens}.onnx", weights)

    def size(folder, *ars):
        folder.mkdir()
        shares = len(ars) > 1
        graphs = [
            {"model": str(tmp_path / f"lowered{ar}.onnx"), "context": str(folder / f"{ar}.onnx"), "shares": shares}
            for ar in ars
        ]
        run_child(folder, graphs=graphs, options=read_options(CompileOptions()).provider(), timeout_s=120)
        return sum(file.stat().st_size for file in folder.glob("*.bin"))

    # What the second graph adds is less than the scales are.
    assert size(tmp_path / "both", 64, 1) - size(tmp_path / "alone", 64) < 65 * 1024


def verified(bundle, *options):
    """The device's runner, in a process of its own: loading a binary may end it."""
    command = [sys.executable, "-m", "octavo_device", "verify", str(bundle), *options]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("shares", ["no", "yes"])
def test_the_runner_replays_a_bundle_on_the_simulator_unless_that_would_crash(exports, tmp_path, shares):
    compiling, deploying = context(tmp_path / "compiled"), context(tmp_path / "bundle")
    options = CompileOptions(values={"share_weights": shares, "simulate": "no"})
    Compile(target=QnnHtpTarget(), options=options).run(exports["w8"], compiling)
    deploy = Deploy(model="small", recipe="w8", replays=QnnHtpTarget().profile.replays)
    outcome = deploy.run(CompiledBlob(path=compiling.out, digest="0" * 64), deploying)
    # What only the device can tell has no figure and no gate here.
    assert not deploy.gates and not any("replay" in name or "limit" in name for name in outcome.metrics)
    without, simulated = verified(deploying.out), verified(deploying.out, "--simulator", "--min-db", "45")
    assert without.returncode == 2
    assert "run it there" in without.stderr
    if shares == "no":
        assert simulated.returncode == 0, simulated.stderr
    else:
        assert simulated.returncode == 2
        assert "share_weights=no" in simulated.stderr


def test_a_crash_of_the_library_is_an_error_that_names_the_signal(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text("import ctypes\nprint('loading', flush=True)\nctypes.string_at(0)\n")
    with pytest.raises(ToolchainCrashed, match=r"SIGSEGV.*loading"):
        run_child(tmp_path, graphs=[], options={}, timeout_s=60, command=(sys.executable, str(script)))


def test_a_child_that_is_killed_is_an_error_that_names_the_signal(tmp_path):
    command = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(ToolchainCrashed, match="SIGKILL"):
        run_child(tmp_path, graphs=[], options={}, timeout_s=60, command=command)


def test_a_child_ends_with_the_build_that_is_killed(tmp_path):
    inner = "from octavo_edge.targets.qnn_htp.child import end_with_parent as e; e(); print('up', flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    reading, writing = os.pipe()  # nobody writes: the child waits for ever
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, env=env, stdin=reading, stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        assert build.stdout.readline() == "up\n"
        build.kill()
        # The end of the pipe: the child had it too, and is gone.
        assert build.stdout.read() == ""
    os.close(reading)
    os.close(writing)


def test_a_child_that_hangs_is_ended(tmp_path):
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    with pytest.raises(ToolchainFailed, match="not done after"):
        run_child(tmp_path, graphs=[], options={}, timeout_s=0.5, command=command)


def test_a_graph_that_is_not_taken_whole_is_refused_with_the_nodes(tmp_path):
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["r"], "positive"),
        onnx.helper.make_node("Det", ["r"], ["y"], "corner"),
    ]
    shapes = (("x", [2, 3, 3]), ("y", [2]))
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10),
        str(tmp_path / "det.onnx"),
    )
    job = {"model": str(tmp_path / "det.onnx"), "context": str(tmp_path / "out.onnx"), "shares": False}
    with pytest.raises(ToolchainFailed, match="corner"):
        run_child(tmp_path, graphs=[job], options={"soc_model": "69", "htp_arch": "79"}, timeout_s=120)


def test_an_unknown_soc_is_refused_with_those_that_are_known():
    with pytest.raises(InvalidArgument) as caught:
        QnnHtpTarget().check_options(CompileOptions(values={"soc": "9999"}))
    assert all(str(soc.number) in caught.value.hint for soc in SOCS)
    assert "Snapdragon 8 Gen 2" in caught.value.hint


@pytest.mark.parametrize("values", [{"socs": "43"}, {"simulate": "maybe"}, {"htp_arch": "7"}, {"optimisation": "9"}])
def test_options_that_are_none_are_refused(values):
    with pytest.raises(InvalidArgument):
        QnnHtpTarget().check_options(CompileOptions(values=values))
