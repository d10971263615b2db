"""Detokenising token by token gives what the tokenizer library decodes at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.detokenizer import Detokenizer
from octavo_common.text.tokenizer import Tokenizer

KINDS = ["byte_level", "byte_fallback", "metaspace"]
FIXTURE_OK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def token_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Nonsense, with more bytes and specials than chance would bring, and the tokens of real text."""
    vocab = tokenizer.vocab_size
    nonsense = st.lists(st.one_of(st.integers(0, vocab + 3), st.integers(0, 260)), max_size=40)
    text = st.text(max_size=30).map(lambda t: tokenizer.encode(t, add_special=False))
    emoji = st.lists(st.sampled_from("é你🙂👩‍👧 aß\ufffd"), max_size=12).map(
        lambda t: tokenizer.encode("".join(t), add_special=False)
    )
    # Text cut anywhere and joined with other cuts: characters break at token borders.
    pieces = st.lists(st.one_of(nonsense, text, emoji.map(lambda ids: ids[1:]), emoji), max_size=4)
    return pieces.map(lambda lists: [i for ids in lists for i in ids])


def library_decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return HfTokenizer.from_str(tokenizer.bundle.tokenizer_json).decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
@FIXTURE_OK
@given(data=st.data())
def test_the_pieces_joined_are_the_full_decode_however_the_tokens_are_cut(kind, data, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    ids = data.draw(token_lists(tokenizer))
    whole = tokenizer.decode(ids)
    detokenizer, text, start = Detokenizer(tokenizer), "", 0
    while start < len(ids):
        size = data.draw(st.integers(1, 6))
        text += detokenizer.push(ids[start : start + size])
        assert whole.startswith(text), "what was given out is taken back later"
        start += size
    assert text + detokenizer.flush() == whole


@pytest.mark.parametrize("kind", KINDS)
@FIXTURE_OK
@given(data=st.data())
def test_every_token_comes_out_once_and_in_order(kind, data, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    ids = data.draw(token_lists(tokenizer))
    detokenizer = Detokenizer(tokenizer)
    tokens = [t for i in ids for t in detokenizer.feed(i)] + detokenizer.end()
    assert len(tokens) == len(ids)
    text = ""
    for num_tokens, token in enumerate(tokens, 1):
        text += token.text
        if token.whole:
            assert text == tokenizer.decode(ids[:num_tokens])


def test_decode_is_the_librarys(tokenizer):
    ids = [*tokenizer.encode("Größe 🙂 </s> x"), 0, 1, 2]
    assert tokenizer.decode(ids) == library_decode(tokenizer, ids)


def test_every_single_token_and_every_pair_with_a_byte_decodes_alike(tokenizer):
    tail = tokenizer.encode("é", add_special=False)[-1]
    for first in range(tokenizer.vocab_size):
        for ids in ([first], [first, tail], [tail, first]):
            detokenizer = Detokenizer(tokenizer)
            assert detokenizer.push(ids) + detokenizer.flush() == tokenizer.decode(ids)


def test_invalid_utf8_becomes_replacement_characters_at_the_end(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["byte_fallback"]
    ids = [tokenizer.token_id(t) for t in ("<0xE4>", "<0xBD>", "<0xA0>", "<0xE4>")]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) == ""
    assert detokenizer.flush() == "\ufffd" * 4


def test_a_text_in_the_middle_keeps_the_space_of_its_first_token(tokenizers_by_kind):
    for kind in ("byte_fallback", "metaspace"):
        tokenizer = tokenizers_by_kind[kind]
        prompt = tokenizer.encode("The quick", add_special=False)
        answer = tokenizer.encode("brown fox", add_special=False)
        detokenizer = Detokenizer(tokenizer, mid_text=True)
        joined = tokenizer.decode(prompt) + detokenizer.push(answer) + detokenizer.flush()
        assert joined == tokenizer.decode(prompt + answer) == "The quick brown fox"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
        decoders.Strip(" ", 1, 0),
    ],
)
def test_a_decoder_that_is_not_known_is_refused_with_its_name(decoder, tokenizers_by_kind):
    value = json.loads(tokenizers_by_kind["byte_level"].bundle.tokenizer_json)
    value["decoder"] = None if decoder is None else json.loads(decoder.__getstate__())
    with pytest.raises(UnsupportedTokenizer, match="decoder"):
        Tokenizer(TokenizerBundle(tokenizer_json=json.dumps(value)))
