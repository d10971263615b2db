"""Core ML's packages, read back here: functions, one set of weights, our integers, and what the program computes."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from unit.edge.exported_models import compiled

from octavo_common.errors import InvalidArgument
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.quant.reading import read_parameters
from octavo_edge.target import Compiled
from octavo_edge.targets.coreml import CoreMlTarget
from octavo_edge.toolchain import mil_run
from octavo_edge.toolchain.mil import compressed_weights, read_program


@pytest.fixture(scope="module")
def blob(exports, tmp_path_factory):
    """What it makes of the model in 4 bits, and what it tells."""
    return compiled(CoreMlTarget(), exports["w4"], tmp_path_factory.mktemp("coreml"))


@pytest.fixture(scope="module")
def functions(blob):
    """The functions of the decoder's package by name."""
    return read_program(blob[0] / "decoder_1_of_1.mlpackage").functions


def test_only_apples_devices_run_it(blob):
    out, result = blob
    assert isinstance(result.outcome, Compiled)
    described = json.loads((out / "blob.json").read_text())
    assert described["runtime"] == "coreml"
    entry = {"file": "decoder_1_of_1.mlpackage"}
    assert described["graphs"]["decoder_1_of_1"] == {
        "8": {**entry, "function": "prefill"},
        "1": {**entry, "function": "decode"},
    }


def test_its_program_computes_what_the_model_computes_in_float16(blob):
    _, result = blob
    assert result.metrics["same_graph_worst_sqnr_db"] > 50
    assert result.metrics["golden_logits_sqnr_db"] > 20
    assert not [warning for warning in result.warnings if "not compared" in warning]


def test_functions_share_their_weights(blob, functions):
    out, _ = blob
    assert set(functions) == {"prefill", "decode"}
    weights = out / "decoder_1_of_1.mlpackage" / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    one_function = sum(w.integers.size // 2 + w.scale.nbytes for w in compressed_weights(functions["decode"]))
    # Each tensor has a header of 64 bytes and begins at a multiple of that; norms and biases are there too.
    assert weights.stat().st_size < 1.1 * one_function + 64 * 2 * 60


@pytest.mark.parametrize("function", ["prefill", "decode"])
def test_weights_are_our_integers(exports, functions, function):
    model = exports["w4"]
    graph = read_manifest(model.path).parts[1].graph(8)
    ours = {name: w for name, w in read_parameters(model.path / graph.file).items() if name.endswith("proj.weight")}
    found = {w.integers.tobytes(): w for w in compressed_weights(functions[function])}
    assert len(ours) == 14 and len(found) == 14
    for weight in ours.values():
        there = found[weight.integers.astype(np.int8).tobytes()]
        scales = weight.encoding.scales.reshape(there.scale.shape)
        assert np.abs(there.scale.astype(np.float64) / scales - 1).max() < 2**-11


def test_only_the_inside_of_norms_is_float32(functions):
    from coremltools.converters.mil.mil import types

    kinds = Counter(
        op.op_type
        for op in functions["decode"].operations
        if op.op_type not in ("const", "cast") and types.builtin_to_string(op.outputs[0].dtype) == "fp32"
    )
    assert kinds == {"mul": 8, "pow": 4, "reduce_mean": 4, "add": 4, "rsqrt": 4}


def test_what_cannot_be_compared_here_is_told_and_delivered(exports, tmp_path, monkeypatch):
    # As with a coremltools whose programs have operations that are not known yet, in every graph.
    monkeypatch.setattr(mil_run, "_RULES", {})
    _, result = compiled(CoreMlTarget(), exports["w4"], tmp_path)
    assert isinstance(result.outcome, Compiled)
    assert len([warning for warning in result.warnings if "not compared, for want of" in warning]) == 4
    assert "same_graph_worst_sqnr_db" not in result.metrics


def test_an_unknown_option_is_an_error(exports, tmp_path):
    with pytest.raises(InvalidArgument, match="norms cannot be 'int8'"):
        compiled(CoreMlTarget(), exports["w4"], tmp_path, norms="int8")
