from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from checkpoints import TEXTS, add_bpe, train_bpe
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.gguf_tokenizer import gguf_bundle

CASES = [
    *TEXTS,
    "", " ", "  ", "\n", "\r\n\r\n", "\t\tx", " leading", "trailing ", "a  b   c    d", "  12  345 6", "1234567890",
    "It's we'll THEY'RE i'M don't", "!!!???...", "x=1;y+=2//z", "<|end|>", "a<|start|>b <|end|> c", "<|en d|>",
    "<0x0A>", "user-defined <think> here",
    "\u00a0nbsp\u2003em", "e\u0301\u0327", "\U0001f468\u200d\U0001f4bb", "ﬁ ligature", "\x00\x01\x7f", "½ ² ٣ Ⅷ 三",
    "<s>x</s>", "▁x", "\ufeffbom", "ａｂｃ", "Zürich\nGenève\n\n\nBâle", "日本語のテキスト。",
]  # fmt: skip


def _write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_embedding_length(4096)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _ours(path: Path) -> tuple[TokenizerBundle, Tokenizer]:
    bundle = gguf_bundle(read_gguf(path))
    assert gguf_bundle(read_gguf(path)).digest == bundle.digest
    return bundle, Tokenizer.from_str(bundle.tokenizer_json)


def _same(ours: Tokenizer, theirs: Tokenizer) -> None:
    for text in CASES:
        expected = theirs.encode(text, add_special_tokens=False).ids
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == expected, repr(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("pre", ["gpt-2", "default", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_tokens_equal_the_conversion_of_transformers(tmp_path: Path, pre: str) -> None:
    path = _write(tmp_path / "t.gguf", lambda writer: add_bpe(writer, train_bpe(500), pre=pre))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="t.gguf").backend_tokenizer
    if pre == "qwen2":
        # The original composes letters first; the conversion of transformers leaves that out.
        theirs.normalizer = normalizers.NFC()
    _same(_ours(path)[1], theirs)


def test_the_demo_model_s_cut_takes_digits_one_by_one_before_words(tmp_path: Path) -> None:
    trained = train_bpe(500)
    path = _write(tmp_path / "t.gguf", lambda writer: add_bpe(writer, trained, pre="smollm"))
    # The original tokenizer of SmolLM (and llama.cpp): \p{N} first, then the words of GPT-2.
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    _same(_ours(path)[1], trained)


def _sentencepiece(writer: gguf.GGUFWriter) -> None:
    """A vocabulary like Llama 2's: specials, bytes, then pieces with falling scores."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=250, show_progress=False))
    value = json.loads(model.to_str())["model"]
    merged = ["".join(merge) for merge in value["merges"]]
    letters = [token for token in value["vocab"] if token not in set(merged)]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *[f"<0x{b:02X}>" for b in range(256)],
        *dict.fromkeys(merged),
        *letters,
        "<think>",
    ]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260), 4]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def test_sentencepiece_tokens_equal_the_conversion_of_transformers(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.gguf", _sentencepiece)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="t.gguf")
    bundle, ours = _ours(path)
    _same(ours, theirs.backend_tokenizer)
    assert bundle.add_bos and bundle.bos_token == "<s>" and bundle.eos_ids == (2,)
    assert dict(bundle.special_tokens) == {"unk_token": "<unk>"}
    assert ours.encode("leaf").ids == [1, *ours.encode("leaf", add_special_tokens=False).ids]


def test_text_that_sentencepiece_does_not_know_becomes_bytes_and_comes_back(tmp_path: Path) -> None:
    _, ours = _ours(_write(tmp_path / "t.gguf", _sentencepiece))
    for text in ("🦑 ж", "line\nbreak", "tab\t"):
        assert ours.decode(ours.encode(text).ids) == text


def test_byte_level_text_comes_back(tmp_path: Path) -> None:
    _, ours = _ours(_write(tmp_path / "t.gguf", lambda writer: add_bpe(writer, train_bpe(), pre="smollm")))
    for text in CASES:
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_and_the_template_come_from_the_metadata(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        add_bpe(writer, train_bpe())
        writer.add_eot_token_id(1)
        writer.add_add_bos_token(True)
        writer.add_pad_token_id(0)

    bundle, ours = _ours(_write(tmp_path / "t.gguf", fill))
    assert (bundle.bos_token, bundle.eos_token, bundle.eos_ids) == ("<|start|>", "<|end|>", (0, 1))
    assert bundle.chat_template == "{{ messages[0]['content'] }}"
    assert dict(bundle.special_tokens) == {"pad_token": "<|end|>"}
    assert bundle.add_bos and ours.encode("x").ids[0] == 1 and ours.encode("x", add_special_tokens=False).ids[0] != 1
    assert TokenizerBundle.from_bytes(bundle.to_bytes()) == bundle


def test_plain_tokens_outside_the_byte_alphabet_are_spelled_in_it(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*pre_tokenizers.ByteLevel.alphabet(), "東"])
        writer.add_token_merges([])

    _, ours = _ours(_write(tmp_path / "t.gguf", fill))
    assert ours.get_vocab_size() == 257 and ours.decode([256]) == "東"


@pytest.mark.parametrize(
    "fill",
    [
        lambda w: w.add_token_list(["a", "a"]),
        lambda w: w.add_array("tokenizer.ggml.tokens", [1, 2]),
        lambda w: None,
        lambda w: (w.add_token_list(["a", "b"]), w.add_token_types([1])),
        lambda w: (w.add_token_list(["a", "b"]), w.add_token_merges(["a b"])),
        lambda w: (w.add_token_list(["a", "b"]), w.add_token_merges(["ab"])),
        lambda w: (w.add_token_list(["a", "b"]), w.add_token_merges(["a b c"])),
    ],
    ids=["twice", "numbers", "no tokens", "kinds", "merge to nothing", "merge of one", "merge of three"],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> None:
    def whole(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        fill(writer)

    path = _write(tmp_path / "t.gguf", whole)
    with pytest.raises(InvalidModel, match=r"t\.gguf"):
        gguf_bundle(read_gguf(path))


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"t\.gguf"):
        gguf_bundle(read_gguf(_write(tmp_path / "t.gguf", lambda _: None)))
