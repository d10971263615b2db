"""GGUF files: read back by transformers they compute what our integers stand for, and they have our tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
import torch
from checkpoints import TEXTS
from tokenizers import Tokenizer
from unit.edge.exported_models import SIZES, compiled
from unit.edge.small_models import adapt, checkpoint

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.gguf import bundle_from_metadata
from octavo_device.feeds import Decoding
from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.decoder import load_decoder
from octavo_edge.models.running import TorchModel
from octavo_edge.models.source import load_source
from octavo_edge.quant.encodings import Lpbq, PerChannel
from octavo_edge.quant.grid import INT4, INT8
from octavo_edge.quant.plan import QuantisedWeight
from octavo_edge.quant.reading import floats
from octavo_edge.quant.weights import channel_scales, lpbq_scales, to_integers
from octavo_edge.target import Compiled, Unavailable
from octavo_edge.targets.gguf import GgufTarget
from octavo_edge.toolchain.gguf_blocks import stored
from octavo_edge.toolchain.gguf_file import GgufModel, reasons_against_file
from octavo_edge.toolchain.gguf_tokenizer import tokenizer_metadata

TOKENS = [1, 5, 17, 200, 33, 8, 321, 90, 4, 250]


def in_bytes(values):
    """A matrix (of a convolution too) in integers of 8 bits, a scale for each row; vectors stay."""
    if values.ndim == 1:
        return values
    scales = channel_scales(values.reshape(len(values), -1), INT8)
    integers = to_integers(values.reshape(len(values), -1), scales, INT8).reshape(values.shape)
    return QuantisedWeight(integers=integers, encoding=PerChannel(grid=INT8, axis=0, scales=scales.channel))


def written(folder, family, **special):
    """`model.gguf` of a random model in 8 bits, and the logits of what its integers stand for."""
    source, _ = checkpoint(folder / "source", family, **(SIZES | special))
    adapted, _ = adapt(source, folder / "adapted")
    decoder = load_decoder(adapted.path)
    parameters = {name: in_bytes(tensor.numpy()) for name, tensor in decoder.state_dict().items()}
    bundle = TokenizerBundle.from_directory(adapted.path)
    metadata = tokenizer_metadata(bundle, vocab_size=decoder.config.vocab_size, where=folder)
    made = GgufModel(decoder.config, parameters, table="q8_0")
    made.write(folder / "model.gguf", metadata)
    decoder.load_state_dict({name: torch.from_numpy(floats(value)) for name, value in parameters.items()})
    spec = decoder.config.graph_spec(context_length=32, ars=(16,))
    return made, Decoding(spec, TorchModel(decoder, spec)).logits(TOKENS)


def fields(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


FAMILIES = [
    ("llama", {"attention_bias": False, "mlp_bias": False}),  # transformers reads no biases of this family
    ("mistral", {"head_dim": 16}),
    ("qwen2", {}),
    ("qwen3", {}),
]


@pytest.mark.parametrize(("family", "special"), FAMILIES)
def test_transformers_computes_what_our_integers_stand_for(tmp_path, family, special):
    made, expected = written(tmp_path, family, **special)
    tensors = made.read_back(tmp_path / "model.gguf")
    assert min(tensors.values()) > 60 and not made.rounded
    assert ("output.weight" in tensors) is (family == "llama"), "the others' heads are their tables"
    # As a user's file: transformers reads it, and nothing may be missing or left over.
    loaded = load_source(tmp_path / "model.gguf").model
    with torch.inference_mode():
        got = loaded(torch.tensor([TOKENS])).logits[0].numpy()
    # Between the two stand scales in float16.
    assert sqnr_db(expected, got) > 55


@pytest.mark.parametrize(("recipe", "kind"), [("w8", "Q8_0"), ("w4", "Q4_0")])
def test_the_recipes_width_decides_the_kind_of_blocks(exports, tmp_path, recipe, kind):
    out, result = compiled(GgufTarget(), exports[recipe], tmp_path)
    assert isinstance(result.outcome, Compiled)
    tensors = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out / "model.gguf").tensors}
    assert {tensors[name] for name in tensors if "attn_q.w" in name or "ffn_down.w" in name} == {kind}
    assert tensors["output.weight"] == "Q8_0"
    assert result.metrics["num_rounded_tensors"] == (recipe == "w8")  # a table of 16 bits
    blob = json.loads((out / "blob.json").read_text())
    assert blob["runtime"] == "llama.cpp" and blob["model"] == "model.gguf" and blob["graphs"] == {}


def test_a_table_in_float16_keeps_more(exports, tmp_path):
    _, rounded = compiled(GgufTarget(), exports["w8"], tmp_path / "q8_0")
    _, kept = compiled(GgufTarget(), exports["w8"], tmp_path / "f16", table="f16")
    assert kept.metrics["worst_weight_sqnr_db"] > 60 > rounded.metrics["worst_weight_sqnr_db"]


def test_scales_that_float16_cannot_hold_are_told_and_nothing_is_delivered(exports, tmp_path):
    model = ExportedModel(path=shutil.copytree(exports["w8"].path, tmp_path / "model"), digest="0" * 64)
    path = model.path / read_manifest(model.path).parts[1].graphs[0].file
    proto = onnx.load(str(path))
    products = [node for node in proto.graph.node if node.op_type == "Conv"]
    (node,) = (node for node in products if node.name.startswith("layers.1.mlp.down_proj/"))
    (weight,) = (other for other in proto.graph.node if other.output[0] == node.input[1])
    (scale,) = (tensor for tensor in proto.graph.initializer if tensor.name == weight.input[1])
    scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * np.float32(1e-7), scale.name))
    onnx.save(proto, str(path))
    out, result = compiled(GgufTarget(), model, tmp_path)
    assert isinstance(result.outcome, Unavailable)
    assert "blk.1.ffn_down.weight" in result.outcome.reason
    assert list(out.iterdir()) == []


def test_blocks_of_32_have_our_integers():
    weight = np.random.default_rng(3).normal(size=(5, 128)).astype(np.float32)
    scales = lpbq_scales(weight, INT4, 64)
    encoding = Lpbq(grid=INT4, axis=1, block_size=64, int_scales=scales.integer, channel_scales=scales.channel, rank=2)
    ours = QuantisedWeight(integers=to_integers(weight, scales, INT4), encoding=encoding)
    made = stored(ours, least=gguf.GGMLQuantizationType.Q8_0)
    assert made.exact and made.kind is gguf.GGMLQuantizationType.Q4_0
    back = gguf.quants.dequantize(made.data, made.kind)
    assert sqnr_db(ours.floats(), back) > 65
    integers = np.rint(back.reshape(5, 4, 32) / np.repeat(scales.block, 2, axis=1)[:, :, None])
    assert np.array_equal(integers.reshape(5, 128), ours.integers)


def test_the_tokenizer_comes_back(exports, tmp_path):
    out, _ = compiled(GgufTarget(), exports["w8"], tmp_path)
    found = fields(out / "model.gguf")
    before = TokenizerBundle.from_directory(exports["w8"].path)
    after = bundle_from_metadata(found, where=out)
    one, other = (Tokenizer.from_str(bundle.tokenizer_json) for bundle in (before, after))
    for text in TEXTS:
        assert one.encode(text, add_special_tokens=False).ids == other.encode(text, add_special_tokens=False).ids
    assert (after.bos_token, after.eos_token, after.chat_template) == (
        before.bos_token,
        before.eos_token,
        before.chat_template,
    )


def test_what_llama_cpp_cannot_run_is_told(tmp_path):
    source, _ = checkpoint(
        tmp_path / "source",
        "llama",
        rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0},
        **SIZES,
    )
    adapted, _ = adapt(source, tmp_path / "adapted", attention="sha")
    why = reasons_against_file(load_decoder(adapted.path).config)
    assert len(why) == 2 and "yarn" in why[1] and "--attention mha" in why[0]


_LLAMA_CPP = Path(__file__).parents[3] / "build" / "peers" / "llama-cpp" / "bin" / "python"
_RUN = """
import json, sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=32, logits_all=True, verbose=False, n_threads=1)
tokens = json.loads(sys.argv[2])
model.eval(tokens)
print(json.dumps([[float(value) for value in row] for row in model.scores[: len(tokens)]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_llama_cpp_computes_what_our_integers_stand_for(tmp_path, family):
    """Where `make bench-peers` has installed it. It rounds activations to 8 bits, so a little is lost."""
    if not _LLAMA_CPP.exists():
        pytest.skip("llama.cpp is not installed: make bench-peers")
    _, expected = written(tmp_path, family)
    command = [str(_LLAMA_CPP), "-c", _RUN, str(tmp_path / "model.gguf"), json.dumps(TOKENS)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    got = np.array(json.loads(run.stdout.splitlines()[-1]), np.float32)
    assert sqnr_db(expected, got) > 25
    assert np.mean(np.argmax(got, axis=-1) == np.argmax(expected, axis=-1)) >= 0.9
