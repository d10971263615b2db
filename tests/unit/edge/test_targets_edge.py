"""What holds for every target, and the list of them at the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from octavo_common.errors import InvalidArgument
from octavo_edge.app import TARGETS
from octavo_edge.target import CompileOptions, GraphNode, GraphSummary, Unavailable, best_outcome

# The libraries of the tool-chains: seconds to import, and some of them can end the process.
VENDORS = ("coremltools", "executorch", "onnxruntime_qnn", "openvino", "tensorrt_rtx")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_goes_by_its_name(name):
    assert TARGETS[name]().profile.name == name


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_refuses_an_option_that_it_does_not_know(name):
    with pytest.raises(InvalidArgument, match="strange"):
        TARGETS[name]().check_options(CompileOptions(values={"strange": "1"}))


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_refuses_private_operators_by_the_nodes_name(name):
    node = GraphNode(name="layers.0/Fused", op="FusedMatMul", domain="com.microsoft")
    against = TARGETS[name]().check(GraphSummary(opset=21, nodes=(node,), weight_bytes=0))
    assert "layers.0/Fused" in {why.node for why in against}


def test_asking_targets_imports_nothing_of_their_tool_chains():
    code = (
        "import sys\nfrom octavo_edge.app import TARGETS\n"
        "for make in TARGETS.values():\n    target = make()\n    target.profile, target.missing()\n"
        f"found = [name for name in {VENDORS} if name in sys.modules]\nassert not found, found"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def listed(*arguments):
    command = [sys.executable, "-m", "octavo_edge", "targets", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_list_says_how_far_each_comes_here():
    lines = {line.split()[0]: line for line in listed().splitlines()}
    assert lines.keys() == TARGETS.keys()
    for name, make in TARGETS.items():
        assert str(best_outcome(make())) in lines[name]
    assert "compiled+run" in lines["onnxruntime"] and "run on device" in lines["coreml"]
    for name, missing in json.loads(listed("--json")).items():
        assert isinstance(best_outcome(TARGETS[name]()), Unavailable) is bool(missing)
