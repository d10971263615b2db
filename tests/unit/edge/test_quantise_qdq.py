"""The quantise stage on a small decoder and real text, and the golden target on what it makes."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from fakes.small_tokenizers import byte_level_tokenizer
from unit.edge.toy_graph import write_toy

from octavo_common.clock import SystemClock
from octavo_common.errors import Cancelled
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.feeds import Decoding
from octavo_edge.artifacts import OptimisedGraph
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.quant import encodings
from octavo_edge.quant.corpus import NoUsableData, Purpose, documents
from octavo_edge.recipe import (
    GPTQ,
    Calibration,
    Evaluation,
    Gates,
    Granularity,
    MixedPrecision,
    QType,
    Recipe,
    RecipeInvalid,
    SeqMSE,
)
from octavo_edge.recipe import WeightPrecision as Weights
from octavo_edge.stage import Cancellation, Progress, StageContext
from octavo_edge.stages.quantise import NotQuantisable, Quantise
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

VOCAB = 400
FAST = Recipe(name="fast", calibration=Calibration(num_windows=8), evaluation=Evaluation(num_windows=3))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimised")
    write_toy(folder, vocab=VOCAB)
    bundle = TokenizerBundle(
        tokenizer_json=byte_level_tokenizer().to_str(),
        chat_template=None,
        bos_token=None,
        eos_token="</s>",
        eos_ids=(1,),
    )
    bundle.to_directory(folder, model_type="llama")
    return OptimisedGraph(path=folder, digest="0" * 64)


class Runs:
    """Runs the stage in folders of a test's own."""

    def __init__(self, folder, source):
        self.folder, self.source, self.told = folder, source, []
        self.cancellation = Cancellation()

    def __call__(self, recipe, name="out", target=None):
        self.out, scratch = self.folder / name, self.folder / f"{name}-scratch"
        self.out.mkdir()
        scratch.mkdir()
        context = StageContext(
            stage="quantise",
            out=self.out,
            scratch=scratch,
            target=target or OnnxRuntimeTarget(),
            clock=SystemClock(),
            cancellation=self.cancellation,
            on_progress=self.on_progress,
        )
        return Quantise(recipe=recipe).run(self.source, context)

    def on_progress(self, progress: Progress):
        self.told.append(progress)


@pytest.fixture
def run(tmp_path, source):
    return Runs(tmp_path, source)


def test_it_writes_graphs_encodings_and_what_it_cost(run):
    outcome = run(FAST)
    names = {path.name for path in run.out.iterdir()}
    assert {"spec.json", "ar8.onnx", "ar1.onnx", "weights.data", "encodings.json", "encodings_v1.json"} <= names
    assert {"quantise.json", "tokenizer.json"} <= names
    metrics = outcome.metrics
    assert metrics["mean_kl_nats"] < 0.05 and metrics["sqnr_db"] > 15
    assert abs(metrics["ppl"] / metrics["float_ppl"] - metrics["ppl_ratio"]) < 1e-9
    assert metrics["size_bytes"] == (run.out / "weights.data").stat().st_size
    assert any("8 calibration batches" in warning for warning in outcome.warnings)
    assert len(outcome.worst) == 5 and [loss.sqnr_db for loss in outcome.worst] == sorted(
        loss.sqnr_db for loss in outcome.worst
    )
    assert json.loads((run.out / "quantise.json").read_text())["metrics"] == metrics


def test_both_encodings_files_say_the_same_of_tensors_that_exist(run):
    run(FAST)
    first, second = (encodings.read(run.out / name) for name in ("encodings_v1.json", "encodings.json"))
    # Schema 2.0.0 does not say which per-tensor entries are parameters.
    assert {**first.activations, **first.params}.keys() == {**second.activations, **second.params}.keys()
    assert first.activations.items() <= second.activations.items()
    float_graph = onnx.load(run.source.path / "ar8.onnx", load_external_data=False).graph
    existing = {t.name for t in (*float_graph.initializer, *float_graph.input)}
    existing |= {name for node in float_graph.node for name in node.output}
    assert set(first.activations) | set(first.params) <= existing


def test_fifty_batches_are_no_warning_and_progress_comes_by_layer(run):
    assert run(replace(FAST, calibration=Calibration(num_windows=50))).warnings == ()
    weights = {progress.what for progress in run.told}
    assert {"q_0", "o_0", "gate_0", "down_0", "q_1", "down_1", "head"} <= weights
    assert all(0 <= progress.done <= progress.total for progress in run.told)


def test_a_better_recipe_loses_less(run):
    four = Weights(qtype=QType.INT4, granularity=Granularity.PCQ)
    precision = replace(FAST.precision, blocks=four, kv_cache=QType.INT16)
    recipe = replace(FAST, precision=precision, calibration=Calibration(num_windows=64))
    plain = run(recipe, "plain").metrics
    search, feedback = SeqMSE(num_candidates=20, num_windows=32), GPTQ(num_windows=64)
    searched = run(replace(recipe, recipe=(search,)), "searched").metrics
    fed_back = run(replace(recipe, recipe=(search, feedback)), "fed-back").metrics
    assert max(searched["mean_kl_nats"], fed_back["mean_kl_nats"]) < plain["mean_kl_nats"]


def test_the_same_recipe_gives_the_same_bytes(run):
    run(FAST, "one")
    run(FAST, "two")
    for name in ("ar8.onnx", "ar1.onnx", "weights.data", "encodings.json"):
        assert (run.folder / "one" / name).read_bytes() == (run.folder / "two" / name).read_bytes(), name


def test_the_layers_that_lose_most_rise_and_the_report_says_which(run):
    four = replace(FAST, precision=replace(FAST.precision, blocks=Weights(qtype=QType.INT4)))
    plain = run(four, "plain").metrics
    outcome = run(replace(four, recipe=(MixedPrecision(max_count=1, max_share=1.0),)), "mixed")
    rows = outcome.details["sensitivity"]
    assert [row["name"] for row in rows] == ["layer 0", "layer 1"]
    (raised,) = (row for row in rows if row["raised"])
    assert raised["loss"] == max(row["loss"] for row in rows)
    assert json.loads((run.out / "quantise.json").read_text())["sensitivity"] == rows
    bits = {name: encoding.grid.bits for name, encoding in encodings.read(run.out / "encodings_v1.json").params.items()}
    number = raised["name"].removeprefix("layer ")
    assert all(bits[f"{name}_{number}"] == 8 and bits[f"{name}_{1 - int(number)}"] == 4 for name in ("q", "up", "down"))
    assert outcome.metrics["mean_kl_nats"] < plain["mean_kl_nats"]
    assert outcome.metrics["size_bytes"] > plain["size_bytes"]


def test_a_target_may_refuse_what_layers_would_rise_to(run):
    class Four(OnnxRuntimeTarget):
        @property
        def profile(self):
            return replace(super().profile, name="four", weights=frozenset({QType.INT4, QType.INT8}))

    four = replace(FAST, precision=replace(FAST.precision, blocks=Weights(qtype=QType.INT4)))
    step = MixedPrecision(to=Weights(qtype=QType.INT16))
    with pytest.raises(RecipeInvalid, match=r"recipe\[0\]\.to\.qtype is int16; four takes int4, int8"):
        run(replace(four, recipe=(step,)), target=Four())


def test_graphs_for_fewer_tokens_are_measured_behind_a_real_past(run, source):
    """Against a generation by ONNX Runtime: eight tokens behind nothing, of which the last is what one call takes."""
    outcome = run(FAST)
    tokenizer = Tokenizer(TokenizerBundle.from_directory(source.path))
    texts = documents(Purpose.EVALUATION, (), lambda t: tokenizer.encode(t, add_special=False), length=8, num=3)
    exact, got = OrtModel(source.path), OrtModel(run.out)
    pairs = []
    for text in texts:
        decoding = Decoding(exact.spec, exact)
        decoding.logits(text[:-1], ars=[8])
        inputs = decoding.inputs(1, text[-1:])
        pairs.append([model(1, inputs)["logits"] for model in (exact, got)])
    expected = sqnr_db(*(np.stack(side) for side in zip(*pairs, strict=True)))
    assert outcome.metrics["logits_sqnr_db_ar1"] == pytest.approx(expected, abs=0.2)


def test_gates_are_the_recipes():
    (gate,) = Quantise(recipe=replace(FAST, gates=Gates(max_mean_kl_nats=0.25))).gates
    assert (gate.metric, gate.at_most) == ("mean_kl_nats", 0.25)


def test_the_words_of_the_texts_are_part_of_the_key_and_the_gates_are_not(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one")
    recipe = replace(FAST, calibration=Calibration(texts=(str(text),)))
    before = Quantise(recipe=recipe).cache_key
    assert Quantise(recipe=replace(recipe, gates=Gates(min_sqnr_db=1))).cache_key == before
    text.write_text("two")
    assert Quantise(recipe=recipe).cache_key != before


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe\x00"])
def test_no_usable_text_is_an_error_that_names_the_key(run, tmp_path, content):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(NoUsableData) as caught:
        run(replace(FAST, calibration=Calibration(texts=(str(file),))))
    assert caught.value.param == "calibration.texts"


def test_what_calibrates_never_judges():
    def encode(text):
        return list(text.encode())

    seen = documents(Purpose.CALIBRATION, (), encode, length=400, num=10_000)
    judged = documents(Purpose.EVALUATION, (), encode, length=400, num=10_000)
    assert len(seen) > 200 and len(judged) > 200
    assert not {tuple(stretch) for stretch in seen} & {tuple(stretch) for stretch in judged}


def test_blocks_that_do_not_fit_are_told_by_weight(run):
    blocks = Weights(qtype=QType.INT4, granularity=Granularity.BQ, block_size=256)
    with pytest.raises(NotQuantisable, match="weight q_0: blocks of 256 do not divide 32 inputs"):
        run(replace(FAST, precision=replace(FAST.precision, blocks=blocks)))


def test_a_precision_that_the_target_lacks_is_refused_before_any_work(run):
    class Eight(OnnxRuntimeTarget):
        profile = replace(OnnxRuntimeTarget().profile, name="eight", activations=frozenset({QType.INT8}))

    with pytest.raises(RecipeInvalid, match=r"precision\.activations is int16; eight takes int8"):
        run(FAST, target=Eight())
    assert run.told == []


def test_it_stops_when_it_is_told_to(run):
    def stop_in_the_middle(progress):
        run.told.append(progress)
        if progress.what == "gate_0":
            run.cancellation.ask()

    run.on_progress = stop_in_the_middle
    with pytest.raises(Cancelled):
        run(FAST)
    assert not any(progress.what == "head" for progress in run.told)
