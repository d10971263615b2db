from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import add_bpe, make_llama, train_bpe, write_gguf

from octavo_common.errors import OctavoError
from octavo_common.text.bundle import UnsupportedTokenizer
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.registry import load_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file; tests copy it before they damage it."""
    folder = tmp_path_factory.mktemp("gguf")
    model = make_llama(folder / "hf", hidden_size=32, intermediate_size=32, num_attention_heads=4, num_hidden_layers=1)
    return write_gguf(folder / "whole.gguf", model)


def _refused(path: Path) -> str:
    """The message of the error that loading the file ends in; it must be typed, and name the file."""
    with pytest.raises(OctavoError) as caught:
        load_model(path)
    assert isinstance(caught.value, InvalidModel | UnsupportedTokenizer)
    assert path.name in caught.value.message
    return caught.value.message


def _edited(whole: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    data = whole.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path = tmp_path / "edited.gguf"
    path.write_bytes(data.replace(old, new))
    return path


def test_metadata_and_tensors_are_those_that_the_gguf_package_reads(whole: Path) -> None:
    ours, theirs = read_gguf(whole), gguf.GGUFReader(str(whole))
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.metadata) == expected
    assert list(ours.tensors) == [tensor.name for tensor in sorted(theirs.tensors, key=lambda t: t.data_offset)]
    for tensor in theirs.tensors:
        own = ours.tensors[tensor.name]
        assert own.shape == tuple(reversed(tensor.shape.tolist()))
        assert (own.kind, own.offset, own.num_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)


def test_every_value_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4_000_000_000, "int32": -2_000_000_000,
        "uint64": 1 << 60, "int64": -(1 << 60), "float32": 0.5, "float64": 0.1, "bool": True, "string": "größe",
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.words", ["a", "", "ü"])
    writer.add_array("x.numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf(path).metadata
    assert {kind: metadata[f"x.{kind}"] for kind in values} == values
    assert metadata["x.words"] == ["a", "", "ü"] and metadata["x.numbers"] == [1, 2, 3]


def test_a_file_cut_anywhere_is_refused(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    cuts = [0, 3, 4, 8, 23, 24, 25, *range(30, len(data), len(data) // 60), len(data) - 1]
    path = tmp_path / "cut.gguf"
    for cut in cuts:
        path.write_bytes(data[:cut])
        _refused(path)


def test_flipped_bytes_in_the_head_end_in_a_typed_error_or_in_a_model_that_loads(whole: Path, tmp_path: Path) -> None:
    data, head = whole.read_bytes(), min(t.offset for t in read_gguf(whole).tensors.values())
    dice = random.Random(5)
    path = tmp_path / "flipped.gguf"
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(dice.choice([1, 1, 2, 8])):
            damaged[dice.randrange(head)] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        path.write_bytes(damaged)
        try:
            load_model(path)
        except (InvalidModel, UnsupportedTokenizer) as error:
            assert path.name in error.message
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("huge", [2**63, 2**64 - 1, 2**40], ids=hex)
@pytest.mark.parametrize("at", [8, 16], ids=["tensors", "metadata"])
def test_absurd_counts_are_refused_at_once(whole: Path, tmp_path: Path, at: int, huge: int) -> None:
    damaged = bytearray(whole.read_bytes())
    struct.pack_into("<Q", damaged, at, huge)
    path = tmp_path / "huge.gguf"
    path.write_bytes(damaged)
    assert "announces" in _refused(path)


def test_a_tensor_of_absurd_size_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    name = b"blk.0.ffn_up.weight"
    dims = struct.pack("<IQQ", 2, 32, 32)
    for wrong in (struct.pack("<IQQ", 2, 32, 2**62), struct.pack("<IQQ", 2, 0, 32), struct.pack("<IQQ", 9, 32, 32)):
        assert name.decode() in _refused(_edited(whole, tmp_path, name + dims, name + wrong))


def test_a_tensor_of_the_wrong_shape_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    name = b"blk.0.ffn_up.weight"
    edited = _edited(whole, tmp_path, name + struct.pack("<IQQ", 2, 32, 32), name + struct.pack("<IQQ", 2, 16, 64))
    message = _refused(edited)
    assert "up_proj" in message and "[64, 16]" in message and "[32, 32]" in message


def test_a_missing_tensor_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    assert "o_proj" in _refused(_edited(whole, tmp_path, b"blk.0.attn_output.weight", b"blk.0.attn_outpux.weight"))


def test_a_tensor_that_no_llama_has_is_refused_by_name(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "hf")

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q_norm.weight", np.zeros(8, dtype=np.float32))

    assert "q_norm" in _refused(write_gguf(tmp_path / "m.gguf", model, extra=extra))


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.IQ4_NL, gguf.GGMLQuantizationType.Q3_K, 999])
def test_tensor_types_that_we_cannot_decode_are_named(whole: Path, tmp_path: Path, kind: int) -> None:
    name = b"blk.0.ffn_up.weight" + struct.pack("<IQQ", 2, 32, 32)
    if kind == gguf.GGMLQuantizationType.Q3_K:
        # Its blocks have 256 weights, which rows of 32 cannot be made of.
        edited = _edited(whole, tmp_path, name + struct.pack("<I", 0), name + struct.pack("<I", kind))
        assert "Q3_K" in _refused(edited)
        return
    message = _refused(_edited(whole, tmp_path, name + struct.pack("<I", 0), name + struct.pack("<I", kind)))
    assert "blk.0.ffn_up.weight" in message
    assert ("IQ4_NL" if kind != 999 else "999") in message


def test_weights_that_are_not_finite_are_refused_by_name(whole: Path, tmp_path: Path) -> None:
    tensor = read_gguf(whole).tensors["blk.0.ffn_down.weight"]
    damaged = bytearray(whole.read_bytes())
    struct.pack_into("<f", damaged, tensor.offset + 40, float("nan"))
    path = tmp_path / "nan.gguf"
    path.write_bytes(damaged)
    assert "down_proj" in _refused(path)


def test_other_architectures_and_tokenizers_are_named(whole: Path, tmp_path: Path) -> None:
    message = _refused(_edited(whole, tmp_path, struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"mamba"))
    assert "'mamba'" in message
    message = _refused(_edited(whole, tmp_path, struct.pack("<Q", 4) + b"gpt2", struct.pack("<Q", 4) + b"rwkv"))
    assert "'rwkv'" in message
    message = _refused(_edited(whole, tmp_path, struct.pack("<Q", 5) + b"gpt-2", struct.pack("<Q", 5) + b"gpt-9"))
    assert "'gpt-9'" in message


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64)):
        path.write_bytes(content)
        _refused(path)
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64))
    assert "big-endian" in _refused(path)
    with pytest.raises(InvalidModel):
        load_model(tmp_path / "nowhere.gguf")


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(tmp_path: Path) -> None:
    vocab_size = train_bpe().get_vocab_size()
    model = make_llama(tmp_path / "hf", vocab_size=vocab_size - 1)
    assert "embedding" in _refused(write_gguf(tmp_path / "m.gguf", model))


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "hf")
    path = write_gguf(tmp_path / "m.gguf", model, extra=lambda writer: writer.add_uint16("split.count", 2))
    assert "parts" in _refused(path)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab-only.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    add_bpe(writer, train_bpe())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _refused(path)
