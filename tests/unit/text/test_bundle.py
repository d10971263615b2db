"""A tokenizer bundle is the same bytes everywhere, and reads what Hugging Face directories hold."""

from __future__ import annotations

import json

import pytest
from fakes.small_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from transformers import AutoTokenizer

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.tokenizer import Tokenizer

FILES = {
    "tokenizer_config.json": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True},
        "unk_token": "<unk>",
    },
    "generation_config.json": {"eos_token_id": [7, 3]},
}


def write(path, tokenizer, files):
    (path / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (path / name).write_text(text, encoding="utf-8")
    return path


def test_bytes_lead_back_to_the_same_bundle_and_the_same_digest(tmp_path):
    bundle = TokenizerBundle.from_directory(write(tmp_path, byte_level_tokenizer(), FILES))
    again = TokenizerBundle.from_bytes(bundle.to_bytes())
    assert again == bundle and again.to_bytes() == bundle.to_bytes() and again.digest == bundle.digest
    assert len(bundle.digest) == 64


def test_a_directory_gives_special_tokens_and_every_end_of_sequence_id(tmp_path):
    bundle = TokenizerBundle.from_directory(write(tmp_path, byte_level_tokenizer(), FILES))
    assert (bundle.bos_token, bundle.eos_token) == ("<s>", "</s>")
    assert bundle.eos_ids == (1, 3, 7)
    assert bundle.special_tokens == (("unk_token", "<unk>"),)
    assert not bundle.add_bos


def test_the_configuration_wins_over_the_post_processor_about_the_first_token(tmp_path):
    tokenizer = byte_fallback_tokenizer()
    assert TokenizerBundle.from_directory(write(tmp_path, tokenizer, FILES)).add_bos
    config = {**FILES["tokenizer_config.json"], "add_bos_token": False}
    files = {**FILES, "tokenizer_config.json": config}
    assert not TokenizerBundle.from_directory(write(tmp_path, tokenizer, files)).add_bos


def test_the_end_of_sequence_id_comes_from_the_model_configuration_when_there_is_no_other(tmp_path):
    files = {"config.json": {"eos_token_id": 9}}
    assert TokenizerBundle.from_directory(write(tmp_path, byte_level_tokenizer(), files)).eos_ids == (9,)


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "T", "tokenizer_config.json": {"chat_template": "other"}},
        {"tokenizer_config.json": {"chat_template": "T"}},
        {
            "tokenizer_config.json": {
                "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "T"}]
            }
        },
        {"chat_template.json": {"chat_template": "T"}},
    ],
)
def test_the_chat_template_is_found_in_each_place_where_it_may_be(tmp_path, files):
    assert TokenizerBundle.from_directory(write(tmp_path, byte_level_tokenizer(), files)).chat_template == "T"


def test_a_directory_without_a_template_has_none(tmp_path):
    assert TokenizerBundle.from_directory(write(tmp_path, byte_level_tokenizer(), {})).chat_template is None


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": "{"},
        {"tokenizer.json": "[]"},
        {"tokenizer_config.json": "no"},
        {"generation_config.json": "[]"},
    ],
)
def test_a_damaged_file_is_named(tmp_path, files):
    write(tmp_path, byte_level_tokenizer(), files)
    with pytest.raises(UnsupportedTokenizer, match=next(iter(files))):
        TokenizerBundle.from_directory(tmp_path)


def test_a_directory_without_tokenizer_json_is_refused_with_a_hint(tmp_path):
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json") as caught:
        TokenizerBundle.from_directory(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"format": 2}', b'{"format": 1, "eos_ids": 3}'])
def test_bytes_that_are_no_bundle_are_refused(data):
    with pytest.raises(UnsupportedTokenizer):
        TokenizerBundle.from_bytes(data)


@pytest.mark.parametrize(
    "template", [None, "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"]
)
@pytest.mark.parametrize("bos", [None, "<s>"])
@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_a_written_directory_reads_back_and_is_what_transformers_takes(make, bos, template, tmp_path):
    bundle = TokenizerBundle(
        tokenizer_json=make().to_str(),
        chat_template=template,
        bos_token=bos,
        eos_token="</s>",
        eos_ids=(1, 7),
        special_tokens=(("unk_token", "<unk>"),),
    )
    bundle.to_directory(tmp_path / "new" / "folder", model_type="llama")
    assert TokenizerBundle.from_directory(tmp_path / "new" / "folder") == bundle
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "new" / "folder"), Tokenizer(bundle)
    text = "Größe 12 🙂  two\n</s> ends"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text, add_special=False)
    assert theirs.eos_token == "</s>" and theirs.chat_template == template
    ours.close()
