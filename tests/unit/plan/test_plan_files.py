"""What planning reads of a model's files: the same numbers as the libraries that wrote them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import make_llama, write_gguf
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from octavo_common.models.gguf_head import TENSOR_TYPES, read_gguf_head
from octavo_common.models.shapes import read_model
from octavo_common.plan.config import FAMILIES, UnreadableModel
from octavo_common.plan.formats import weight_bytes, weight_format


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    model = make_llama(folder / "hf", hidden_size=32, intermediate_size=32, num_attention_heads=4, num_hidden_layers=2)
    return write_gguf(folder / "whole.gguf", model)


def test_sizes_of_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()}
    assert {number: theirs[number] for number in TENSOR_TYPES} == TENSOR_TYPES


def test_a_gguf_head_is_what_the_gguf_package_reads(whole: Path) -> None:
    head, theirs = read_gguf_head(whole), gguf.GGUFReader(str(whole))
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert head.metadata.items() <= fields.items()
    assert {name for name in fields if name not in head.metadata} <= {n for n in fields if n.startswith("tokenizer.")}
    assert head.dims == {t.name: tuple(t.shape.tolist())[::-1] for t in theirs.tensors}
    assert head.num_bytes == {t.name: t.n_bytes for t in theirs.tensors}


def test_a_file_and_the_directory_it_was_made_from_have_one_shape(whole: Path) -> None:
    file, directory = read_model(whole, "x"), read_model(whole.parent / "hf", "x")
    assert file.shape == directory.shape
    assert file.weights is not None and file.weights.total == sum(read_gguf_head(whole).num_bytes.values())
    assert directory.weights is None and read_model(whole).shape.name == "whole"


def test_the_demo_model_takes_what_its_format_says(demo_model_path: Path) -> None:
    found = read_model(demo_model_path)
    assert found.shape.num_parameters == 134_515_008
    assert found.stored.name == "stored (Q4_1)"
    assert found.weights == weight_bytes(found.shape, weight_format("q4_1"))


@pytest.mark.parametrize("config", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_a_config_that_transformers_writes_is_read_with_its_defaults(config, tmp_path: Path) -> None:
    made = config()
    made.save_pretrained(tmp_path)
    shape = read_model(tmp_path).shape
    assert (shape.num_layers, shape.hidden, shape.num_heads) == (
        made.num_hidden_layers, made.hidden_size, made.num_attention_heads,
    )  # fmt: skip
    assert shape.num_kv_heads == made.num_key_value_heads and shape.vocab_size == made.vocab_size
    assert shape.context_length == made.max_position_embeddings and shape.tie_embeddings == made.tie_word_embeddings
    assert shape.sliding_window == (made.sliding_window if config is MistralConfig else None)
    assert shape.qkv_bias == (config is Qwen2Config) and shape.qk_norm == (config is Qwen3Config)


@pytest.mark.parametrize("named", [True, False])
def test_layers_with_a_window_are_those_that_transformers_makes(named: bool, tmp_path: Path) -> None:
    made = Qwen2Config(num_hidden_layers=5, use_sliding_window=True, sliding_window=64, max_window_layers=2)
    values = made.to_dict() if named else {k: v for k, v in made.to_dict().items() if k != "layer_types"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape = read_model(tmp_path).shape
    assert (shape.sliding_window, shape.window_layers) == (64, made.layer_types.count("sliding_attention")) == (64, 3)


def test_the_precision_is_the_one_that_the_config_names(tmp_path: Path) -> None:
    values = LlamaConfig().to_dict()
    for named, read in (("float16", "float16"), ("float32", "float32"), (None, "bfloat16"), ("int4", "bfloat16")):
        (tmp_path / "config.json").write_text(json.dumps({**values, "dtype": named}))
        assert read_model(tmp_path).stored.name == read


def damaged(whole: Path, tmp_path: Path, kind: str) -> Path:
    data, path = whole.read_bytes(), tmp_path / "damaged.gguf"
    if kind == "short":
        path.write_bytes(data[: len(data) // 20])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "other":
        path.write_bytes(b"PK\3\4" + data)
    elif kind == "tensors":
        path.write_bytes(data[:8] + struct.pack("<Q", 1 << 60) + data[16:])
    elif kind == "nested":
        deep = struct.pack("<IQ", 9, 1) * 100_000
        path.write_bytes(
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + deep
        )
    elif kind == "values":
        path.write_bytes(data[:16] + struct.pack("<Q", 1 << 60) + data[24:])
    else:
        writer = gguf.GGUFWriter(str(path), "llama" if kind == "weights" else kind)
        for name in (
            "block_count",
            "embedding_length",
            "attention.head_count",
            "feed_forward_length",
            "context_length",
        ):
            writer.add_uint32(f"llama.{name}", 8)
        writer.add_tensor("token_embd.weight", np.zeros((10, 8), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


@pytest.mark.parametrize("kind", ["short", "empty", "other", "tensors", "values", "nested", "weights", "gemma"])
def test_files_that_are_no_such_model_are_refused_by_name(whole: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnreadableModel) as raised:
        read_model(damaged(whole, tmp_path, kind))
    assert "damaged.gguf" in raised.value.message


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", json.dumps({"model_type": "llama"}), json.dumps({"model_type": "mamba"})]
)
def test_configs_that_say_too_little_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnreadableModel) as raised:
        read_model(tmp_path)
    assert "config.json" in raised.value.message


def test_heads_that_cannot_share_are_refused(tmp_path: Path) -> None:
    values = {**LlamaConfig().to_dict(), "num_key_value_heads": 5}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnreadableModel, match="cannot share"):
        read_model(tmp_path)
    with pytest.raises(UnreadableModel, match="no model"):
        read_model(tmp_path / "nothing")
    (tmp_path / "config.json").unlink()
    with pytest.raises(UnreadableModel, match="neither"):
        read_model(tmp_path)


def test_families_are_those_of_which_shapes_are_known() -> None:
    from octavo_common.plan.shapes import SHAPES

    assert {shape.family for shape in SHAPES.values()} == set(FAMILIES)
