"""Text on the device: pieces as tokens come, never half a character, and a conversation that is one sequence."""

from __future__ import annotations

import pytest
from fakes.small_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.edge.bundled import bundled

from octavo_device.bundle import read_bundle
from octavo_device.chat import Conversation
from octavo_device.errors import DeviceError
from octavo_device.sampling import Sampling
from octavo_device.text import Text, TextStream


@pytest.fixture(scope="module", params=[byte_level_tokenizer, byte_fallback_tokenizer])
def text(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    request.param().save(str(folder / "tokenizer.json"))
    return Text(folder)


@settings(deadline=None, max_examples=60)
@given(words=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\ufffd"), max_size=12))
def test_pieces_are_whole_characters_and_together_the_text(text, words):
    ids = text.ids("é🙂 the " + words)
    stream, pieces = TextStream(text), []
    for token in ids:
        pieces.append(stream.add(token))
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[-1]
    pieces.append(stream.end())
    assert "".join(pieces) == text.text(ids)


def test_a_character_that_never_ends_is_not_printed(text):
    ids = text.ids("a🙂")
    stream = TextStream(text)
    told = "".join(stream.add(token) for token in ids[:-1]) + stream.end()
    assert told == "a"


def test_a_conversation_is_one_sequence(tmp_path):
    bundle = read_bundle(bundled(tmp_path))
    together = Conversation(bundle, Sampling(), raw=True, max_tokens=2)
    first = "".join(together.ask("the"))
    second = "".join(together.ask(" a"))
    alone = Conversation(bundle, Sampling(), raw=True, max_tokens=2)
    assert "".join(alone.ask(f"the{first} a")) == second
    with pytest.raises(DeviceError, match="no system text"):
        Conversation(bundle, Sampling(), raw=True, system="Be brief.")
