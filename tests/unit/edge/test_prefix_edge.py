"""A prefix in a recipe: its keys and values, what it saves, and what is refused before anything is built."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import make_llama, oracle
from unit.edge.exported import VOCAB, quantised
from unit.edge.prefixed import LETTERS, MASSIVE, MASSIVE_TEXT, recipe, spiky_toy
from unit.edge.small_models import adapt, checkpoint, context, optimise

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.command import main as device
from octavo_device.feeds import Decoding
from octavo_device.prefix import read_prefix
from octavo_edge.__main__ import main
from octavo_edge.app import check_targets
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.quant.prefix import check_prefix, count_tokens, make_prefix, read_place, token_ids
from octavo_edge.recipe import Calibration, Evaluation, QType, RecipeInvalid
from octavo_edge.recipe_file import from_yaml
from octavo_edge.stages.quantise import Quantise


@pytest.fixture(scope="module")
def spiky(tmp_path_factory):
    return spiky_toy(tmp_path_factory.mktemp("spiky"))


@pytest.fixture(scope="module")
def tokenizer(spiky):
    return Tokenizer(TokenizerBundle.from_directory(spiky.path))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_the_float_graph_behind_a_prefix_is_transformers_with_its_tokens_before(tmp_path, family):
    source, model = checkpoint(tmp_path / "source", family)
    graphs, _ = optimise(adapt(source, tmp_path / "adapted")[0], tmp_path / "optimised")
    ort, rng = OrtModel(graphs.path, num_threads=1), np.random.default_rng(3)
    tokenizer = Tokenizer(TokenizerBundle.from_directory(graphs.path))
    # One token, some, and more than a call takes.
    for num_tokens in (1, 3, 19):
        ids, text = (rng.integers(0, 330, size).tolist() for size in (num_tokens, 40))
        prefix = make_prefix(graphs.path, ort.spec, ids, tokenizer, lambda *_: None)
        expected = oracle(model, [*ids, *text]).numpy()[num_tokens:]
        assert sqnr_db(expected, Decoding(ort.spec, ort, prefix).logits(text)) > 100


def texts(folder, tokenizer, *, beginning, num, length, seed):
    """A file of `num` windows of `length` tokens that begin so, and the recipe's word for it."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list(LETTERS), length - bool(beginning))) for _ in range(num)]
    text = "".join(beginning + word for word in words)
    assert len(tokenizer.encode(text, add_special=False)) == num * length
    folder.mkdir(exist_ok=True)
    (folder / f"{seed}.txt").write_text(text)
    return (str(folder / f"{seed}.txt"),)


def judged(folder, tokenizer, asked, *, beginning):
    """The recipe on texts whose windows begin so."""
    calibration = texts(folder, tokenizer, beginning=beginning, num=16, length=16, seed=1)
    evaluation = texts(folder, tokenizer, beginning=beginning, num=6, length=8, seed=2)
    return replace(
        asked,
        calibration=Calibration(num_windows=32, texts=calibration),
        evaluation=Evaluation(num_windows=6, texts=evaluation),
    )


def test_with_the_massive_token_as_prefix_sixteen_bits_lose_less(spiky, tokenizer, tmp_path):
    metrics = {}
    for name, prefix, beginning in (("without", (), MASSIVE_TEXT), ("with", (MASSIVE,), "")):
        asked = judged(tmp_path / f"{name}-texts", tokenizer, recipe(*prefix), beginning=beginning)
        metrics[name] = Quantise(recipe=asked).run(spiky, context(tmp_path / name)).metrics
    assert metrics["with"]["mean_kl_nats"] < 0.7 * metrics["without"]["mean_kl_nats"]
    assert metrics["with"]["sqnr_db"] > metrics["without"]["sqnr_db"] + 3
    assert metrics["with"]["logits_sqnr_db_ar1"] > metrics["without"]["logits_sqnr_db_ar1"] + 3
    assert metrics["with"]["largest_residual"] < 100
    assert "largest_residual" not in metrics["without"]


def test_what_the_report_says_of_the_texts_without_prefix_is_what_they_are_without_one(spiky, tokenizer, tmp_path):
    asked = judged(tmp_path / "texts", tokenizer, recipe(), beginning=MASSIVE_TEXT)
    without = Quantise(recipe=asked).run(spiky, context(tmp_path / "without")).metrics
    asked = replace(asked, prefix=("Q", 7))
    outcome = Quantise(recipe=asked).run(spiky, context(tmp_path / "with"))
    assert outcome.metrics["float_ppl_without_prefix"] == pytest.approx(without["float_ppl"], rel=1e-6)
    assert outcome.metrics["float_ppl"] != pytest.approx(without["float_ppl"], rel=1e-3)
    # Here the texts' own tokens are massive, and no prefix helps.
    assert min(outcome.metrics["largest_residual"], outcome.metrics["largest_residual_without_prefix"]) > 1e4
    (first,) = tokenizer.encode("Q", add_special=False)
    told = {"tokens": f"{first}, 7", "text": f"Q{tokenizer.decode([7])}", "num_tokens": 2}
    assert outcome.details["prefix"] == told
    kept = json.loads((tmp_path / "with" / "out" / "quantise.json").read_text())
    assert kept["prefix"] == told


@pytest.mark.parametrize("kv_cache", [QType.INT8, QType.INT16, QType.FLOAT32])
def test_the_file_has_the_float_graphs_keys_and_values_in_the_cache_inputs_encoding(spiky, tmp_path, kv_cache):
    out = quantised(spiky, tmp_path / "quantised", recipe(MASSIVE, 9, kv_cache=kv_cache)).path
    place, ort = read_place(out), OrtModel(spiky.path, num_threads=1)
    assert place is not None
    assert (place.token_ids, place.bos_token_id, place.text[:3]) == ((MASSIVE, 9), MASSIVE, MASSIVE_TEXT)
    assert {tensor.dtype for tensor in place.tensors} == {
        {QType.INT8: "int8", QType.INT16: "uint16"}.get(kv_cache, "float32")
    }
    found = read_prefix(out, place).arrays
    outputs = ort(8, Decoding(ort.spec, ort).inputs(8, [MASSIVE, 9]))
    size = 0
    for tensor in place.tensors:
        exact = outputs[tensor.name][tuple(slice(length) for length in tensor.shape)]
        # To the nearest integer; what is not on a grid is the same number.
        away = 0 if tensor.scale is None else tensor.scale * 0.5001
        np.testing.assert_allclose(found[tensor.name], exact, rtol=1e-5, atol=max(away, 1e-6))
        size += exact.size * np.dtype(tensor.dtype).itemsize
    assert (out / place.file).stat().st_size == size


def test_words_for_tokens(tokenizer):
    def ids(text):
        return token_ids(from_yaml(text).prefix, tokenizer, vocab_size=VOCAB)

    assert ids("prefix: bos") == ids("prefix: [bos]") == ids("prefix: ['<s>']") == ids("prefix: [0]") == (0,)
    assert ids("prefix: ['<s>', 7, AB]") == (0, 7, *tokenizer.encode("AB", add_special=False))
    assert ids("prefix: []") == ids("prefix: null") == ids("") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prefix: [400]", "prefix[0] is token 400; the model has 400, from 0 on"),
        ("prefix: [bos, 5, 70000]", "prefix[2] is token 70000"),
        (f"prefix: {list(range(16))}", "prefix has 16 tokens; a context of 24 with a graph for 8 new tokens"),
    ],
)
def test_tokens_that_the_model_has_not_and_too_many_are_refused(spiky, text, told):
    bundle = TokenizerBundle.from_directory(spiky.path)
    sizes = {"vocab_size": VOCAB, "context_length": 24, "ars": (8, 1)}
    with pytest.raises(RecipeInvalid) as caught:
        check_prefix(from_yaml(text).prefix, bundle, **sizes)
    assert (caught.value.param, told in caught.value.message) == ("prefix", True), caught.value.message
    check_prefix(tuple(range(15)), bundle, **sizes)
    # A text counts by its tokens.
    assert count_tokens((0, "A" * 9), bundle) == 1 + len(Tokenizer(bundle).encode("A" * 9, add_special=False)) > 2
    with pytest.raises(RecipeInvalid, match="prefix is bos, and the model's tokenizer has no such token"):
        check_prefix(("bos",), replace(bundle, bos_token=None), **sizes)


def test_a_service_refuses_it_without_the_model():
    for targets in (("onnxruntime", "qnn-htp", "openvino", "coreml", "tensorrt-rtx", "executorch"), ("gguf",)):
        refused = pytest.raises(RecipeInvalid, match="gguf fills its own") if targets == ("gguf",) else nullcontext()
        with refused:
            check_targets(targets, {}, from_yaml("prefix: bos"))


class Place:
    """A checkpoint and a store at the command line."""

    def __init__(self, folder):
        self.folder = folder
        make_llama(folder / "tiny", max_position_embeddings=64)

    def build(self, prefix, out="out", target="onnxruntime"):
        text = f"calibration: {{num_windows: 2}}\nevaluation: {{num_windows: 1}}\nprefix: {prefix}\n"
        (self.folder / "recipe.yaml").write_text(text)
        given = ["build", str(self.folder / "tiny"), "--target", target, "--recipe", str(self.folder / "recipe.yaml")]
        places = ["--out", str(self.folder / out), "--store", str(self.folder / "store")]
        return main([*given, *places, "--context-length", "32", "--ar", "8,1"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("prefix"))


@pytest.mark.parametrize(
    ("target", "prefix", "told"),
    [
        ("gguf", "[1]", "prefix is for targets whose cache is filled from outside; gguf fills its own"),
        ("onnxruntime,gguf", "[1]", "gguf fills its own"),
        ("onnxruntime", "bos", "prefix is bos, and the model's tokenizer has no such token"),
        ("onnxruntime", "[330]", "prefix[0] is token 330; the model has 330, from 0 on"),
        ("onnxruntime", f"{[1] * 24}", "has room for 23"),
        ("onnxruntime", "eos", "prefix is 'eos'; it is bos, or a list"),
    ],
)
def test_what_cannot_be_built_is_refused_before_the_first_stage(place, capsys, target, prefix, told):
    assert place.build(prefix, target=target) == 2
    assert told in capsys.readouterr().err
    assert not list(place.folder.glob("out*"))
    assert not list(place.folder.glob("store/objects/*"))


def test_a_build_with_a_prefix_says_so_and_its_bundle_is_verified(place, capsys):
    assert place.build("['<|start|>', 7]") == 0
    out = place.folder / "out"
    report = json.loads((out / "report.json").read_text())
    (details,) = (stage["outcome"]["details"] for stage in report["stages"] if stage["stage"] == "quantise")
    assert (details["prefix"]["tokens"], details["prefix"]["num_tokens"]) == ("1, 7", 2)
    assert report["settings"]["recipe"]["prefix"] == ["<|start|>", 7]
    page = (out / "report.html").read_text()
    assert "(2 of the context&#x27;s tokens)" in page and "largest sum of the residual without prefix" in page
    metadata = json.loads((out / "metadata.json").read_text())
    assert (metadata["version"], metadata["prefix"]["token_ids"]) == (2, [1, 7])
    assert metadata["files"]["prefix.bin"]["bytes"] == (out / "prefix.bin").stat().st_size
    capsys.readouterr()
    assert device(["verify", str(out)]) == 0
    assert "all 14 outputs reach 60 dB" in capsys.readouterr().out
