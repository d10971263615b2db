"""The device's runner on a small bundle: its answers are those of whole graphs, and its errors are lines.

It runs where nothing but numpy, onnxruntime and tokenizers can be imported.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from unit.edge.bundled import DEVICE, bundled, change_metadata, device, parts_without_files
from unit.edge.exported import VOCAB
from unit.edge.toy_graph import CONTEXT

from octavo_device.bundle import read_bundle
from octavo_device.errors import BundleDamaged, ContextFull, DoesNotFit
from octavo_device.feeds import Decoding
from octavo_device.generation import Generation
from octavo_device.model import DeviceModel
from octavo_device.sampling import Sampler, Sampling
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.graph.runtime import OrtModel

SPLITS = {
    "usual": SplitOptions(),
    "layers": SplitOptions(num_decoder_parts=2),
    "whole": SplitOptions(embedding=False, head=False),
}


@pytest.fixture(scope="module", params=SPLITS)
def place(request, tmp_path_factory):
    """A folder with a bundle, and beside it the graphs that it was made of."""
    folder = tmp_path_factory.mktemp(request.param)
    bundled(folder, split=SPLITS[request.param])
    return folder


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return bundled(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def copy(usual, tmp_path):
    """A bundle to damage."""
    return shutil.copytree(usual, tmp_path / "copy")


def greedy(folder, prompt, num_tokens, ars=(1,)):
    """By whole graphs with everything fed anew for each token: no cache, no parts, no chunks of the runner's."""
    model, tokens = OrtModel(folder, num_threads=1), list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(np.argmax(Decoding(model.spec, model).logits(tokens, ars=list(ars))[-1])))
    return tokens[len(prompt) :]


def test_answers_are_those_of_the_whole_graphs(place):
    model = DeviceModel(read_bundle(place / "bundle" / "out"))
    rng = np.random.default_rng(1)
    # Of one token, of less than a chunk, of a chunk and more, and of so many that a large graph has no room at the end.
    for length in (1, 5, 11, 21):
        prompt = rng.integers(2, VOCAB, length).tolist()
        wanted = min(4, CONTEXT - length)
        expected = greedy(place / "quantised" / "out", prompt, wanted)
        found = list(Generation(model).answer(prompt, Sampling(), wanted))
        stop = expected.index(1) if 1 in expected else wanted  # the end of an answer is not part of it
        assert found == expected[:stop]


def test_a_second_question_computes_only_what_is_new(usual):
    calls: list[tuple[str, int]] = []

    class Counting(DeviceModel):
        def run_part(self, part, ar, feeds):
            calls.append((part.name, ar))
            return super().run_part(part, ar, feeds)

    bundle = read_bundle(usual)
    generation = Generation(Counting(bundle))
    prompt = list(range(10, 20))
    first = list(generation.answer(prompt, Sampling(), 2))
    # Two chunks of eight, one head, then a token at a time.
    assert calls.count(("head", 1)) == 2
    assert calls.count(("decoder_1_of_1", 8)) == 2
    assert calls.count(("decoder_1_of_1", 1)) == 1
    calls.clear()
    longer = [*prompt, *first, 30]
    again = list(generation.answer(longer, Sampling(), 2))
    # The first answer's last token has never been fed: it and the new one are a chunk.
    assert calls.count(("decoder_1_of_1", 8)) == 1
    assert again == list(Generation(DeviceModel(bundle)).answer(longer, Sampling(), 2))


def test_the_context_is_used_to_its_last_token(usual):
    bundle = read_bundle(usual)
    generation = Generation(DeviceModel(bundle))
    prompt = list(range(10, 10 + CONTEXT - 2))
    bundle_without_end = bundle.__class__(
        **{name: getattr(bundle, name) for name in bundle.__slots__} | {"eos_token_ids": ()}
    )
    generation = Generation(DeviceModel(bundle_without_end))
    # The last token that is drawn needs no room: it is not fed.
    assert len(list(generation.answer(prompt, Sampling()))) == 3
    assert generation.finish_reason == "context"
    with pytest.raises(ContextFull, match=f"the prompt has {CONTEXT + 1} tokens, and the context {CONTEXT}"):
        list(generation.answer([10] * (CONTEXT + 1), Sampling()))
    with pytest.raises(DoesNotFit, match="none of the model's"):
        list(generation.answer([VOCAB], Sampling()))


def test_without_a_graph_for_one_token_the_answers_are_the_same(tmp_path):
    # The cache keeps CONTEXT - 8 tokens then. Beyond them what was not kept must not be taken for what was.
    model = DeviceModel(replace(read_bundle(bundled(tmp_path, ars=(8,))), eos_token_ids=()))
    whole, rng = tmp_path / "quantised" / "out", np.random.default_rng(1)
    for length in (5, CONTEXT - 8, CONTEXT - 3):
        prompt = rng.integers(2, VOCAB, length).tolist()
        generation = Generation(model)
        found = list(generation.answer(prompt, Sampling()))
        assert (len(found), generation.finish_reason) == (CONTEXT - length + 1, "context")
        assert found[:-1] == greedy(whole, prompt, CONTEXT - length, ars=(8,))
        # The same beginning, and another end: what is shared is more than what was kept.
        again = [*prompt, *found][: CONTEXT - 2]
        assert list(generation.answer(again, Sampling(), 1)) == greedy(whole, again, 1, ars=(8,))
    # A chunk that ends behind what can be kept leaves none for the tokens after it.
    model.cache.cut(0)
    tokens = rng.integers(2, VOCAB, CONTEXT - 2).tolist()
    model.feed(tokens[:12])
    logits = model.feed(tokens[12:])
    model.cache.cut(0)
    np.testing.assert_allclose(logits, model.feed(tokens), rtol=1e-4, atol=1e-4)
    assert model.num_free == 0
    with pytest.raises(ContextFull, match="the graph for 8 tokens takes a past of 16, and there are 22"):
        model.feed([10])


def test_sampling_draws_what_it_may():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    draws = {name: set() for name in ("all", "top_k", "top_p")}
    for seed in range(200):
        draws["all"].add(Sampler(Sampling(temperature=1, seed=seed)).next(logits))
        draws["top_k"].add(Sampler(Sampling(temperature=1, top_k=2, seed=seed)).next(logits))
        draws["top_p"].add(Sampler(Sampling(temperature=1, top_p=0.75, seed=seed)).next(logits))
    assert draws == {"all": {0, 1, 2, 3}, "top_k": {0, 1}, "top_p": {0, 1}}
    sampler = Sampler(Sampling(temperature=0.5, seed=3))
    counts = np.bincount([sampler.next(logits) for _ in range(4000)], minlength=4) / 4000
    sharper = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(counts, sharper / sharper.sum(), atol=0.03)
    assert Sampler(Sampling()).next(logits) == 0


def test_run_says_the_same_on_a_device(usual):
    done = device("run", usual, "--raw", "--prompt", "the quick", "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")
    bundle = read_bundle(usual)
    from octavo_device.text import Text

    text = Text(usual)
    tokens = list(Generation(DeviceModel(bundle)).answer(text.ids("the quick"), Sampling(), 4))
    assert done.stdout.rstrip("\n") == text.text(tokens).rstrip("\N{REPLACEMENT CHARACTER}")
    talked = device("run", usual, "--raw", "--max-tokens", "2", stdin="one\n\n")
    assert talked.returncode == 0
    assert talked.stdout.count("\n") >= 1


def test_verify_replays_every_graph(usual):
    done = device("verify", usual, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["passed"] and document["limit_db"] == 60
    assert [(graph["part"], graph["ar"]) for graph in document["graphs"]] == [
        (part, ar) for part in ("embedding", "decoder_1_of_1", "head") for ar in (8, 1)
    ]
    assert all(float(db) >= 60 for graph in document["graphs"] for db in graph["sqnr_db"].values())


def test_verify_names_what_is_too_far(copy):
    # Another table is another model from the first tensor on.
    metadata = json.loads((copy / "metadata.json").read_text())
    metadata["embedding"]["scale"] = (metadata["embedding"]["scale"] or 1) * 2
    change_metadata(copy, embedding=metadata["embedding"])
    done = device("verify", copy)
    assert done.returncode == 1
    assert done.stderr.startswith("octavo-device: below 60 dB: hidden_0 (embedding, ")
    assert done.stderr.count("\n") == 1


def test_verify_does_not_pass_what_it_compared_nothing_of(copy):
    np.savez(copy / "vectors" / "head_ar1.npz")
    metadata = json.loads((copy / "metadata.json").read_text())
    written = (copy / "vectors" / "head_ar1.npz").read_bytes()
    files = metadata["files"]
    files["vectors/head_ar1.npz"] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    change_metadata(copy, files=files)
    done = device("verify", copy)
    assert (done.returncode, "the vectors of head for 1 tokens are empty" in done.stderr) == (2, True), done
    change_metadata(copy, parts=[])
    done = device("verify", copy)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no graph that could be compared" in done.stderr


DAMAGES = {
    "no_bundle": (lambda folder: (folder / "metadata.json").unlink(), "is no bundle"),
    "cut": (lambda folder: (folder / "metadata.json").write_text('{"format": "octavo-bun'), "cannot be read"),
    "other": (lambda folder: (folder / "metadata.json").write_text("{}"), "is not the metadata of a bundle"),
    "newer": (lambda folder: change_metadata(folder, version=3), "format version 3, and this runner reads 1 and 2"),
    "half": (lambda folder: change_metadata(folder, spec={}), "is incomplete"),
    "missing": (lambda folder: (folder / "weights.data").unlink(), "weights.data is missing"),
    "short": (lambda folder: (folder / "head_ar1.onnx").write_bytes(b"x"), "head_ar1.onnx has 1 bytes"),
    "elsewhere": (lambda folder: change_metadata(folder, runtime="coreml"), "compiled for the device: run it there"),
    # As llama.cpp's: one file for all parts, none of which has a graph of its own.
    "one_file": (
        lambda folder: change_metadata(folder, runtime="llama.cpp", parts=parts_without_files(folder), embedding=None),
        "compiled for the device: run it there",
    ),
    "qnn": (lambda folder: change_metadata(folder, runtime="onnxruntime-qnn"), "compiled for the device: run it there"),
}


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_is_one_line(copy, damage, command, capsys):
    from octavo_device.command import main

    harm, told = DAMAGES[damage]
    harm(copy)
    more = ["--raw", "--prompt", "x"] if command == "run" else []
    assert main([command, str(copy), *more]) == 2
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1


def test_changed_bytes_are_found(copy):
    data = bytearray((copy / "weights.data").read_bytes())
    data[100] ^= 1
    (copy / "weights.data").write_bytes(data)
    bundle = read_bundle(copy)
    with pytest.raises(BundleDamaged, match=r"weights\.data is not what was built"):
        bundle.check_files(contents=True)


def test_a_chat_without_a_template_says_what_to_do(usual, capsys):
    from octavo_device.command import main

    assert main(["run", str(usual), "--prompt", "x"]) == 2
    assert "no chat.json" in (line := capsys.readouterr().err)
    assert "--raw" in line


def test_what_the_device_lacks_is_one_line(usual):
    code = "import sys, runpy; sys.modules['tokenizers'] = None; sys.path.insert(0, sys.argv.pop(1)); "
    code += "runpy.run_module('octavo_device', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(DEVICE), "verify", str(usual)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "octavo-device: not installed: tokenizers - pip install tokenizers\n"


def test_the_command_line_hands_over_to_the_runner(usual, tmp_path):
    command = [sys.executable, "-m", "octavo_cli", "device"]
    absent = subprocess.run([*command, "verify", str(tmp_path)], capture_output=True, text=True, check=False)
    assert absent.returncode == 2
    assert "is no bundle" in absent.stderr
    done = subprocess.run([*command, "verify", str(usual)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 14 outputs reach 60 dB" in done.stdout
