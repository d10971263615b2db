"""The optimised graphs of every family against transformers in float32, and what holds for their files."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import oracle
from unit.edge.small_models import FAMILIES, adapt, checkpoint, context, optimise

from octavo_common.errors import InvalidArgument
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.feeds import Decoding
from octavo_device.spec import graph_file, read_spec
from octavo_edge.artifacts import AdaptedModel, source_model
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.graph.summary import summarise
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.models.decoder import load_decoder
from octavo_edge.models.running import TorchModel
from octavo_edge.passes.registry import DEFAULT_PASSES, GraphPass
from octavo_edge.stages import optimise as optimise_stage
from octavo_edge.stages.adapt import Adapt
from octavo_edge.stages.optimise import Optimise, PassChangedGraph
from octavo_worker.models.registry import load_model

LICENSE = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
# An export takes seconds: the family whose heads have projections of their own stands for both forms.
CASES = {family: (family, "sha" if family == "qwen2" else "mha") for family in FAMILIES}


@dataclasses.dataclass(frozen=True)
class Built:
    model: object
    adapted: AdaptedModel
    folder: object
    outcome: object

    def graph(self, ar):
        return onnx.load(self.folder / graph_file(ar), load_external_data=False)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def built(request, tmp_path_factory):
    family, form = request.param
    folder = tmp_path_factory.mktemp("export")
    source, model = checkpoint(folder / "source", family)
    adapted, _ = adapt(source, folder / "adapted", attention=form)
    graphs, outcome = optimise(adapted, folder / "optimised")
    return Built(model, adapted, graphs.path, outcome)


def some_tokens(num_tokens):
    return np.random.default_rng(5).integers(0, 330, num_tokens).tolist()


def test_logits_equal_those_of_transformers_by_chunks_and_token_by_token(built):
    tokens = some_tokens(64)
    expected = oracle(built.model, tokens).numpy()
    graphs = OrtModel(built.folder, num_threads=1)
    assert sqnr_db(expected, Decoding(graphs.spec, graphs).logits(tokens)) > 100
    steps = Decoding(graphs.spec, graphs)
    mixed = [steps.logits(tokens[:30], ars=(16,)), steps.logits(tokens[30:40], ars=(1,)), steps.logits(tokens[40:56])]
    assert sqnr_db(expected[:56], np.concatenate(mixed)) > 100


def test_every_output_equals_the_decoders_in_torch(built):
    assert built.outcome.metrics["worst_sqnr_db"] > 100
    decoder = load_decoder(built.adapted.path)
    spec = read_spec(built.folder)
    graphs = OrtModel(built.folder, num_threads=1, optimise=False)
    for ar in spec.ars:
        for call in Decoding(spec, TorchModel(decoder, spec)).calls(some_tokens(2 * ar), ars=(ar,)):
            got = graphs(ar, call.inputs)
            assert [tensor.name for tensor in spec.outputs(ar)] == list(got)
            for name, expected in call.outputs.items():
                assert sqnr_db(expected, got[name]) > 100, name


def test_all_graphs_point_at_one_file_that_has_every_weight_once(built):
    weights = {}
    for ar in (16, 1):
        for tensor in built.graph(ar).graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                places = {entry.key: entry.value for entry in tensor.external_data}
                assert places["location"] == WEIGHTS_FILE
                weights.setdefault(tensor.name, set()).add((places["offset"], places["length"]))
    assert all(len(places) == 1 for places in weights.values())
    decoder = load_decoder(built.adapted.path)
    state = decoder.state_dict()
    assert weights.keys() == state.keys()
    stored = {place: name for name, (place,) in weights.items()}
    padding = 4096 * len(stored)
    size = (built.folder / WEIGHTS_FILE).stat().st_size
    assert size == built.outcome.metrics["weights_size_bytes"]
    assert size <= sum(int(length) for _, length in stored) + padding
    if decoder.config.tied_embeddings:
        assert weights["lm_head.weight"] == weights["embed_tokens.weight"]
    # As ONNX's own loader reads them.
    loaded = {tensor.name: tensor for tensor in onnx.load(built.folder / graph_file(1)).graph.initializer}
    for name, values in state.items():
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded[name]), values.numpy())


def test_nodes_have_the_same_names_whatever_the_number_of_tokens(built):
    names = [[(entry.name, entry.op_type) for entry in built.graph(ar).graph.node] for ar in (16, 1)]
    assert names[0] == names[1]
    assert len({name for name, _ in names[0]}) == len(names[0])
    assert ("layers.1.mlp.down_proj/Conv", "Conv") in names[0]


def test_graphs_are_standard_and_say_nothing_of_where_they_were_made(built):
    spec = read_spec(built.folder)
    config = load_decoder(built.adapted.path).config
    for ar in spec.ars:
        onnx.checker.check_model(str(built.folder / graph_file(ar)), full_check=True)
        summary = summarise(built.folder / graph_file(ar))
        assert summary.opset == 21
        assert {entry.domain for entry in summary.nodes} == {""}
        ops = [entry.op for entry in summary.nodes]
        assert ops.count("Softmax") == spec.num_layers * (spec.num_heads if config.attention == "sha" else 1)
        assert not {"Constant", "Identity", "Cast", "Shape", "SplitToSequence", "Loop", "If"} & set(ops)
        assert all("float" in entry.dtypes for entry in summary.nodes)
        data = (built.folder / graph_file(ar)).read_bytes()
        assert b".py" not in data
        assert b"octavo" not in data
    assert built.outcome.metrics["num_refused_ops"] == 0


def test_the_epsilon_of_a_norm_survives(built):
    graph = built.graph(16).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.raw_data}
    roots = [entry for entry in graph.node if entry.op_type == "Sqrt"]
    makers = {name: entry for entry in graph.node for name in entry.output}
    for root in roots:
        added = makers[root.input[0]]
        assert added.op_type == "Add"
        assert constants[added.input[1]] == np.float32(1e-5 / 128**2)
    head_norms = load_decoder(built.adapted.path).config.head_norms
    num_heads = 6 + 2 if load_decoder(built.adapted.path).config.attention == "sha" else 2
    assert len(roots) == 5 + 2 * num_heads * head_norms


def test_the_tokenizer_comes_along(built):
    assert TokenizerBundle.from_directory(built.folder) == TokenizerBundle.from_directory(built.adapted.path)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-layer")
    source, _ = checkpoint(folder / "source", num_hidden_layers=1)
    return adapt(source, folder / "adapted")[0]


def test_passes_that_were_not_chosen_do_not_run_and_what_they_leave_is_told(adapted, tmp_path):
    graphs, outcome = optimise(adapted, tmp_path, ars=(4,), passes=("remove_dead_code", "drop_zero_bias"))
    assert outcome.metrics["worst_sqnr_db"] > 100
    assert [row["pass"] for row in outcome.details["passes"]] == ["drop_zero_bias", "remove_dead_code"]
    # Where it was made is told to nobody, whatever passes run.
    assert b".py" not in (graphs.path / "ar4.onnx").read_bytes()
    assert "Constant" in {entry.op for entry in summarise(graphs.path / "ar4.onnx").nodes}
    # Sequences are left, which no device has: the gate would stop the build here.
    assert set(outcome.unsupported_ops) == {"SequenceAt", "SplitToSequence"}
    gate = next(gate for gate in Optimise(context_length=64, ars=(4,)).gates if gate.metric == "num_refused_ops")
    assert not gate.passes(outcome.metrics["num_refused_ops"])


def test_norms_may_be_one_operator(adapted, tmp_path):
    passes = (*DEFAULT_PASSES, "fuse_rms_norm")
    graphs, outcome = optimise(adapted, tmp_path, ars=(4,), passes=passes)
    assert outcome.metrics["worst_sqnr_db"] > 100
    summary = summarise(graphs.path / "ar4.onnx")
    names = [entry.op for entry in summary.nodes]
    assert (summary.opset, names.count("RMSNormalization"), names.count("Sqrt")) == (23, 3, 0)


def test_a_pass_that_changes_the_result_is_found(adapted, tmp_path, monkeypatch):
    def lose_a_norm(model):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for entry in changed.graph.node:
            if entry.op_type == "Sqrt":
                entry.op_type = "Abs"
        return changed

    faulty = GraphPass(name="lose_a_norm", run=lose_a_norm)
    monkeypatch.setattr(optimise_stage, "select_passes", lambda names: (faulty,))
    with pytest.raises(PassChangedGraph, match="lose_a_norm"):
        optimise(adapted, tmp_path, ars=(4,))


def test_the_same_wishes_have_the_same_key_and_others_another():
    first = Optimise(context_length=64, ars=(16, 1))
    assert first.cache_key == Optimise(context_length=64, ars=(1, 16)).cache_key
    others = [
        Optimise(context_length=32, ars=(16, 1)),
        Optimise(context_length=64, ars=(16,)),
        Optimise(context_length=64, ars=(16, 1), passes=("remove_dead_code",)),
    ]
    assert len({stage.cache_key for stage in (first, *others)}) == 4
    assert Adapt(context_length=64).cache_key == Adapt(context_length=32).cache_key
    assert Adapt(context_length=64).cache_key != Adapt(context_length=64, attention="sha").cache_key


def test_an_unknown_pass_is_refused(adapted, tmp_path):
    with pytest.raises(InvalidArgument, match="no pass make_faster"):
        optimise(adapted, tmp_path, passes=("make_faster",))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_model_keeps_over_100_db_to_the_last_graph(demo_model_path, tmp_path):
    adapted, told = adapt(source_model(demo_model_path), tmp_path / "adapted", context_length=512)
    assert told.metrics["worst_sqnr_db"] > 100
    ctx = context(tmp_path / "optimised")
    outcome = Optimise(context_length=512, ars=(128, 1)).run(adapted, ctx)
    assert outcome.metrics["worst_sqnr_db"] > 100
    # One copy of 134.5 million float32 weights, the tied head included, for both graphs.
    assert outcome.metrics["weights_size_bytes"] < 134_515_008 * 4 * 1.001
    graphs = OrtModel(ctx.out)
    assert graphs.spec.num_layers == 30
    ours, theirs = (
        Tokenizer(bundle) for bundle in (TokenizerBundle.from_directory(ctx.out), load_model(demo_model_path).bundle)
    )
    for text in (LICENSE, "x   1234 and 5.6", "<|im_start|>user\nHi 12.5!<|im_end|>\n"):
        assert list(ours.encode(text)) == list(theirs.encode(text))
    # What follows is the float model's own choice, by the graphs alone: prefill by 128, then token by token.
    steps = Decoding(graphs.spec, graphs)
    logits, answer = steps.logits(ours.chat([{"role": "user", "content": "What is the capital of France?"}])), []
    while len(answer) < 24 and (token := int(logits[-1].argmax())) not in ours.bundle.eos_ids:
        answer.append(token)
        logits = steps.logits([token])
    assert "Paris" in ours.decode(answer)
