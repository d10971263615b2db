"""Encoding against transformers, and the limits around it."""

from __future__ import annotations

import json
import threading

import pytest
from fakes.small_tokenizers import MAKERS, bundle_of
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.tokenizer import MAX_CHARS, TextTooLong, Tokenizer

TEXTS = [
    "",
    "Hello world",
    " Größe 🙂\n\n\tx",
    "<s>already</s>",
    "  two  spaces ",
    "你好",
    "\x00\ufffd",
    "The <think> STOP",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_ids_are_those_of_transformers(kind, text, tokenizers_by_kind):
    ours = tokenizers_by_kind[kind]
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=MAKERS[kind](), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.encode(text, add_special=False) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_directory_encodes_as_auto_tokenizer_does_about_the_first_token(tmp_path, add_bos):
    PreTrainedTokenizerFast(
        tokenizer_object=MAKERS["byte_fallback"](), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.update(add_bos_token=add_bos)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer(TokenizerBundle.from_directory(tmp_path))
    assert (ours.encode("The fox")[0] == ours.token_id("<s>")) == add_bos
    if add_bos:
        assert ours.encode("The fox") == AutoTokenizer.from_pretrained(tmp_path)("The fox")["input_ids"]


def test_a_bundle_that_wants_a_first_token_gets_one_also_without_a_post_processor():
    tokenizer = Tokenizer(bundle_of(MAKERS["byte_level"](), add_bos=True))
    assert tokenizer.encode("fox") == [tokenizer.token_id("<s>"), *tokenizer.encode("fox", add_special=False)]


def test_cuts_and_padding_in_the_file_are_not_applied():
    hf = MAKERS["byte_level"]()
    hf.enable_truncation(3)
    hf.enable_padding(length=50)
    text = "The quick brown fox"
    assert Tokenizer(bundle_of(hf)).encode(text) == Tokenizer(bundle_of(MAKERS["byte_level"]())).encode(text)


def test_a_long_text_gives_the_ids_of_the_short_way(tokenizer):
    text = "The quick brown fox 🙂 " * 300
    assert tokenizer.encode(text, add_special=False) == tokenizer._tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff end", "\ud83d"])
def test_lone_surrogates_are_refused_with_the_place(tokenizer, text):
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        tokenizer.encode(text)
    with pytest.raises(FailedPrecondition):
        tokenizer.chat([{"role": "user", "content": text}])


def test_ten_megabytes_are_refused_before_any_work(tokenizer):
    with pytest.raises(TextTooLong, match="10000000 characters"):
        tokenizer.encode("a" * 10_000_000)


def test_a_text_that_cannot_fit_the_context_is_refused_before_any_work(tokenizer):
    limit = tokenizer.max_chars(16)
    tokenizer.encode("a" * limit, max_tokens=16)
    with pytest.raises(TextTooLong):
        tokenizer.encode("a" * (limit + 1), max_tokens=16)
    assert limit < MAX_CHARS


def test_a_long_text_leaves_the_interpreter_to_other_threads(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["byte_level"]
    done = threading.Event()
    thread = threading.Thread(target=lambda: (tokenizer.encode("The quick brown fox " * 50_000), done.set()))
    thread.start()
    num_turns = 0
    while not done.wait(0.001):
        num_turns += 1
    thread.join()
    assert num_turns > 5


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "Nothing"}}', "not json"])
def test_a_damaged_tokenizer_is_refused(text):
    with pytest.raises(UnsupportedTokenizer):
        Tokenizer(TokenizerBundle(tokenizer_json=text))


def test_a_model_without_a_template_says_so(tokenizer):
    with pytest.raises(FailedPrecondition) as caught:
        tokenizer.chat([{"role": "user", "content": "hi"}])
    assert caught.value.code == "NO_CHAT_TEMPLATE" and caught.value.hint


def test_ids_that_no_vocabulary_has_have_no_text(tokenizer):
    assert tokenizer.decode([-1, 10**6, 2**40]) == ""


def test_chat_gives_the_ids_of_the_rendered_text():
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    tokenizer = Tokenizer(bundle_of(MAKERS["byte_fallback"](), add_bos=True, chat_template=source))
    messages = [{"role": "user", "content": "The fox"}]
    theirs = PreTrainedTokenizerFast(tokenizer_object=MAKERS["byte_fallback"](), bos_token="<s>", eos_token="</s>")
    expected = theirs.apply_chat_template(messages, chat_template=source, return_dict=False, add_generation_prompt=True)
    try:
        assert tokenizer.chat(messages) == expected
    finally:
        tokenizer.close()
