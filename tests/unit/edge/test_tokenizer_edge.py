"""A GGUF file's tokenizer: the builder gives the device the one that the worker serves with."""

from __future__ import annotations

import gguf
import pytest
from checkpoints import add_bpe, train_bpe

from octavo_common.text.bundle import UnsupportedTokenizer
from octavo_edge.models.source import CorruptCheckpoint, gguf_tokenizer
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.gguf_tokenizer import gguf_bundle


def write(path, fill):
    writer = gguf.GGUFWriter(str(path), "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_builder_and_worker_read_the_same_tokenizer(tmp_path, pre):
    path = write(tmp_path / "t.gguf", lambda writer: add_bpe(writer, train_bpe(400), pre=pre))
    assert gguf_tokenizer(path).digest == gguf_bundle(read_gguf(path)).digest


def test_a_tokenizer_that_cannot_be_built_exactly_is_refused(tmp_path):
    path = write(tmp_path / "t.gguf", lambda writer: add_bpe(writer, train_bpe(400), pre="unheard-of"))
    with pytest.raises(UnsupportedTokenizer, match="unheard-of"):
        gguf_tokenizer(path)


def test_merges_of_unknown_tokens_are_damage(tmp_path):
    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b", "ab c"])

    with pytest.raises(CorruptCheckpoint, match="'ab' and 'c'"):
        gguf_tokenizer(write(tmp_path / "t.gguf", fill))
