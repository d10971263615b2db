"""The device's runner behind a bundle's prefix: its answers, its context, and bundles that lost theirs."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.edge.bundled import change_metadata, device
from unit.edge.exported import VOCAB
from unit.edge.prefixed import MASSIVE, ByHand, bundle_of, recipe, spiky_toy
from unit.edge.toy_graph import CONTEXT

from octavo_device.bundle import read_bundle
from octavo_device.chat import Conversation
from octavo_device.errors import ContextFull, DoesNotFit
from octavo_device.generation import Generation
from octavo_device.model import DeviceModel
from octavo_device.prefix import Prefix
from octavo_device.sampling import Sampling
from octavo_device.text import Text
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.recipe import QType

PREFIX = [MASSIVE, 40, 9]


@pytest.fixture(scope="module")
def spiky(tmp_path_factory):
    return spiky_toy(tmp_path_factory.mktemp("spiky"))


@pytest.fixture(scope="module", params=[QType.INT8, QType.INT16, QType.FLOAT32], ids=str)
def place(request, spiky, tmp_path_factory):
    """A folder with a bundle, and beside it the graphs that it was made of."""
    folder = tmp_path_factory.mktemp(request.param)
    bundle_of(spiky, folder, recipe(*PREFIX, kv_cache=request.param))
    return folder


@pytest.fixture(scope="module")
def usual(spiky, tmp_path_factory):
    return bundle_of(spiky, tmp_path_factory.mktemp("usual"), recipe("bos"))


@pytest.fixture
def copy(usual, tmp_path):
    """A bundle to damage."""
    return shutil.copytree(usual, tmp_path / "copy")


def test_answers_are_those_of_whole_graphs_behind_the_float_graphs_prefix(spiky, place):
    model = DeviceModel(read_bundle(place / "bundle" / "out"))
    golden, rng = ByHand(spiky.path, place / "quantised" / "out", PREFIX), np.random.default_rng(1)
    model.bundle = replace(model.bundle, eos_token_ids=())
    for length in (1, 5, 11, 18):
        prompt = rng.integers(2, VOCAB, length).tolist()
        wanted = min(4, CONTEXT - len(PREFIX) - length)
        expected = golden.greedy(prompt, wanted)
        # With the prefix's tokens before it, with the first of them, which is BOS, and with none it is the same prompt.
        for given_prompt in (prompt, [*PREFIX, *prompt], [MASSIVE, *prompt]):
            assert list(Generation(model).answer(given_prompt, Sampling(), wanted)) == expected


def test_parts_and_no_graph_for_one_token_give_the_same(tmp_path):
    # The cache keeps CONTEXT - 8 tokens then, the prefix among them.
    source = spiky_toy(tmp_path / "optimised", ars=(8,))
    bundle = bundle_of(source, tmp_path, recipe(*PREFIX), SplitOptions(num_decoder_parts=2))
    model = DeviceModel(replace(read_bundle(bundle), eos_token_ids=()))
    golden, rng = ByHand(source.path, tmp_path / "quantised" / "out", PREFIX), np.random.default_rng(1)
    for length in (5, CONTEXT - 8 - len(PREFIX), CONTEXT - 3 - len(PREFIX)):
        prompt = rng.integers(2, VOCAB, length).tolist()
        wanted = CONTEXT - len(PREFIX) - length
        found = list(Generation(model).answer(prompt, Sampling()))
        assert found[:-1] == golden.greedy(prompt, wanted, ars=(8,))


def test_a_chat_that_begins_with_bos_has_it_once(spiky, usual, tmp_path):
    bundle = shutil.copytree(usual, tmp_path / "chat")
    pieces = {"first": ["<s>Q", " A"], "next": None, "system": None, "trims": False}
    (bundle / "chat.json").write_text(json.dumps(pieces))
    golden, text = ByHand(spiky.path, usual.parents[1] / "quantised" / "out", [MASSIVE]), Text(usual)
    conversation = Conversation(replace(read_bundle(bundle), eos_token_ids=()), Sampling(), max_tokens=2)
    answer = text.text(golden.greedy(text.ids("QB A"), 2))
    assert "".join(conversation.ask("B")) == answer.rstrip("\N{REPLACEMENT CHARACTER}")


def test_the_prefix_is_never_fed(usual):
    fed = []

    class Watching(DeviceModel):
        def run_part(self, part, ar, feeds):
            if part.kind == "embedding":
                fed.append((ar, feeds["input_ids"][0].tolist()))
            return super().run_part(part, ar, feeds)

    generation = Generation(Watching(replace(read_bundle(usual), eos_token_ids=())))
    first = list(generation.answer([MASSIVE, 10, 11, 12], Sampling(), 2))
    assert fed == [(8, [10, 11, 12] + [12] * 5), (1, [first[0]])]
    fed.clear()
    # What was said is still there: only what is new is computed.
    again = [MASSIVE, 10, 11, 12, *first, 30]
    answer = list(generation.answer(again, Sampling(), 1))
    assert fed == [(8, [first[1], 30] + [30] * 6)]
    assert answer == list(Generation(DeviceModel(generation._model.bundle)).answer(again[1:], Sampling(), 1))


def test_the_prefix_takes_slots_of_the_context(place):
    model = DeviceModel(replace(read_bundle(place / "bundle" / "out"), eos_token_ids=()))
    assert model.num_free == CONTEXT - len(PREFIX)
    generation, longest = Generation(model), CONTEXT - len(PREFIX)
    # The last token that is drawn needs no room: it is not fed.
    assert len(list(generation.answer([10] * longest, Sampling()))) == 1
    assert len(list(generation.answer([10] * (longest - 2), Sampling()))) == 3
    assert generation.finish_reason == "context"
    told = f"the prompt has {CONTEXT + 1} tokens, 3 of them the bundle's prefix, and the context {CONTEXT}"
    for prompt in ([10] * (longest + 1), [*PREFIX, *[10] * (longest + 1)]):
        with pytest.raises(ContextFull, match=told):
            list(generation.answer(prompt, Sampling()))
    for nothing in ([], PREFIX):
        with pytest.raises(DoesNotFit, match="nothing behind the bundle's prefix"):
            list(generation.answer(nothing, Sampling()))


tokens = st.lists(st.integers(0, 3), max_size=6)


@given(tokens, tokens, st.none() | st.integers(0, 3))
def test_a_prompt_has_the_prefix_once(prefix, prompt, bos):
    made = Prefix(token_ids=tuple(prefix), bos_token_id=bos)
    found = made.before(prompt)
    assert found[: len(prefix)] == prefix
    assert made.before(found) == found
    # Nothing of the prompt is lost but what the prefix has.
    rest = found[len(prefix) :]
    assert prompt in ([*prefix, *rest], rest, [bos, *rest])
    if prompt[:1] == [bos] == prefix[:1] and prompt[: len(prefix)] != prefix:
        assert rest == prompt[1:]


def test_a_device_runs_and_verifies_it(usual):
    done = device("verify", usual)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "all 14 outputs reach 60 dB" in done.stdout
    done = device("run", usual, "--raw", "--prompt", "the quick", "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    # A model that wants BOS before plain text, and nothing else: it is the prefix, and there is no text.
    done = device("run", usual, "--raw", "--prompt", "")
    assert (done.returncode, "nothing behind the bundle's prefix" in done.stderr) == (2, True)


def changed(bundle, *, told):
    """Flip a bit of the prefix's file, and say its digest if asked."""
    data = bytearray((bundle / "prefix.bin").read_bytes())
    data[3] ^= 1
    (bundle / "prefix.bin").write_bytes(data)
    if told:
        files = json.loads((bundle / "metadata.json").read_text())["files"]
        files["prefix.bin"]["sha256"] = hashlib.sha256(data).hexdigest()
        change_metadata(bundle, files=files)


def told_otherwise(bundle, **changes):
    """Say other things of the prefix's first tensor, or of the prefix."""
    prefix = json.loads((bundle / "metadata.json").read_text())["prefix"]
    prefix["tensors"][0].update({name: value for name, value in changes.items() if name in prefix["tensors"][0]})
    change_metadata(bundle, prefix=prefix | {name: value for name, value in changes.items() if name in prefix})


DAMAGES = {
    "changed": (lambda folder: changed(folder, told=False), "prefix.bin is not what was built"),
    "another": (
        lambda folder: changed(folder, told=True),
        "was made behind another prefix than the bundle's: past_key_0",
    ),
    "short": (lambda folder: told_otherwise(folder, offset=10**6), "prefix.bin cannot be read"),
    "layer": (lambda folder: told_otherwise(folder, name="key_7"), "incomplete: AssertionError: the prefix's keys"),
    "length": (
        lambda folder: told_otherwise(folder, token_ids=[0, 1]),
        "incomplete: AssertionError: the prefix's keys",
    ),
    "missing": (lambda folder: (folder / "prefix.bin").unlink(), "prefix.bin is missing"),
    "dropped": (lambda folder: change_metadata(folder, prefix=None), "metadata.json is incomplete"),
    "older": (lambda folder: change_metadata(folder, version=1), "metadata.json is incomplete"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_prefix_that_is_not_the_bundles_is_found(copy, damage, capsys):
    from octavo_device.command import main

    harm, told = DAMAGES[damage]
    harm(copy)
    assert main(["verify", str(copy)]) == 2
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1
