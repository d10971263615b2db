"""The adapted decoder of every family against transformers in float32."""

import numpy as np
import pytest
import torch
from checkpoints import oracle, write_gguf
from unit.edge.small_models import FAMILIES, adapt, checkpoint

from octavo_common.text.bundle import TokenizerBundle
from octavo_device.feeds import Decoding, rope_tables
from octavo_edge.artifacts import source_model
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.config import read_config
from octavo_edge.models.decoder import load_decoder
from octavo_edge.models.layers import RMSNorm
from octavo_edge.models.running import TorchModel

CONTEXT = 64
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


def decoding(adapted, *, ars=(16, 5, 1)):
    decoder = load_decoder(adapted.path)
    spec = decoder.config.graph_spec(context_length=CONTEXT, ars=ars)
    return Decoding(spec, TorchModel(decoder, spec))


def some_tokens(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 330, num_tokens).tolist()


@pytest.mark.parametrize("form", ["mha", "sha"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_by_chunks_and_token_by_token(tmp_path, family, form):
    source, model = checkpoint(tmp_path / "source", family)
    adapted, outcome = adapt(source, tmp_path / "adapted", attention=form)
    assert outcome.metrics["worst_sqnr_db"] > 100
    assert {"first_chunk_sqnr_db", "second_chunk_sqnr_db", "decode_sqnr_db"} <= outcome.metrics.keys()
    tokens = some_tokens(CONTEXT)
    expected = oracle(model, tokens).numpy()
    assert sqnr_db(expected, decoding(adapted).logits(tokens)) > 100
    steps = decoding(adapted)
    mixed = [steps.logits(tokens[:21]), steps.logits(tokens[21:30], ars=(1,)), steps.logits(tokens[30:])]
    assert sqnr_db(expected, np.concatenate(mixed)) > 100


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(tmp_path, family):
    source, model = checkpoint(tmp_path / "source", family)
    adapted, _ = adapt(source, tmp_path / "adapted")
    prompt = some_tokens(37, seed=1)
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(prompt) :].tolist()
    steps, found = decoding(adapted), []
    logits = steps.logits(prompt)
    for _ in range(20):
        found.append(int(logits[-1].argmax()))
        logits = steps.logits(found[-1:])
    assert found == expected


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaled_context_rotates_as_transformers_does(tmp_path, kind):
    scaling = SCALINGS[kind] | {"rope_theta": 10000.0}
    source, model = checkpoint(tmp_path / "source", rope_parameters=scaling)
    adapted, _ = adapt(source, tmp_path / "adapted")
    config = read_config(adapted.path)
    assert config.rope.kind == kind
    positions = torch.arange(CONTEXT)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
    ours = rope_tables(config.rope, np.arange(CONTEXT))
    for got, exact in zip(ours, (cos, sin), strict=True):
        np.testing.assert_allclose(got, exact[0, :, : config.head_dim // 2].numpy(), atol=2e-6)
    tokens = some_tokens(CONTEXT)
    assert sqnr_db(oracle(model, tokens).numpy(), decoding(adapted).logits(tokens)) > 100


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_model_that_it_was_written_from(tmp_path, family):
    plain = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True} if family == "llama" else {}
    _, model = checkpoint(tmp_path / "source", family, vocab_size=320, **plain)
    source = source_model(write_gguf(tmp_path / "model.gguf", model))
    adapted, outcome = adapt(source, tmp_path / "adapted")
    assert outcome.metrics["worst_sqnr_db"] > 100
    tokens = [token % 320 for token in some_tokens(40)]
    assert sqnr_db(oracle(model, tokens).numpy(), decoding(adapted).logits(tokens)) > 100


def test_both_forms_of_attention_give_the_same_from_the_same_memory(tmp_path):
    source, _ = checkpoint(tmp_path / "source", "qwen3")
    whole, _ = adapt(source, tmp_path / "mha")
    split, _ = adapt(source, tmp_path / "sha", attention="sha")
    assert (whole.path / "weights.safetensors").read_bytes() == (split.path / "weights.safetensors").read_bytes()
    tokens = some_tokens(50)
    assert sqnr_db(decoding(whole).logits(tokens), decoding(split).logits(tokens)) > 100
    decoder = load_decoder(whole.path)
    memory = decoder.get_parameter("layers.0.self_attn.q_proj.weight").untyped_storage().data_ptr()
    decoder.split_heads()
    heads = decoder.get_submodule("layers.0.self_attn.q_proj")
    assert len(heads) == 6
    assert {head.weight.untyped_storage().data_ptr() for head in heads} == {memory}


def test_a_window_that_the_architecture_does_not_read_has_no_effect(tmp_path):
    source, _ = checkpoint(tmp_path / "source", "llama", sliding_window=5)
    adapted, outcome = adapt(source, tmp_path / "adapted")
    assert outcome.metrics["worst_sqnr_db"] > 100
    assert read_config(adapted.path).window is None
    source, _ = checkpoint(tmp_path / "windowed", "mistral", sliding_window=5)
    adapted, _ = adapt(source, tmp_path / "adapted-windowed")
    assert read_config(adapted.path).window == 5


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_stored_once_and_stays_tied(tmp_path, tied):
    source, model = checkpoint(tmp_path / "source", tie_word_embeddings=tied)
    adapted, outcome = adapt(source, tmp_path / "adapted")
    decoder = load_decoder(adapted.path)
    same = decoder.lm_head.weight.data_ptr() == decoder.embed_tokens.weight.data_ptr()
    assert same == tied
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert outcome.metrics["weights_size_bytes"] == 4 * num_parameters


def test_the_tokenizer_comes_along(tmp_path):
    source, _ = checkpoint(tmp_path / "source")
    adapted, _ = adapt(source, tmp_path / "adapted")
    assert TokenizerBundle.from_directory(adapted.path) == TokenizerBundle.from_directory(source.path)


def test_a_norm_squares_a_massive_activation_within_float16():
    norm = RMSNorm(576, 1e-5)
    norm.load_state_dict({"weight": torch.ones(576)}, assign=True)
    x = torch.randn(1, 1, 4, 576, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 7] = 24_000.0
    exact = x.double() / torch.sqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5)
    assert sqnr_db(exact.numpy(), norm(x).numpy()) > 130
    half = RMSNorm(576, 1e-5)
    half.load_state_dict({"weight": torch.ones(576).half()}, assign=True)
    rows = half(x.half())
    assert torch.isfinite(rows).all()
    # The spike's own row and the ordinary ones alike.
    for row in range(4):
        assert sqnr_db(exact[0, 0, row].numpy(), rows[0, 0, row].double().numpy()) > 50


def test_a_row_of_zeros_is_normalised_to_zeros():
    norm = RMSNorm(8, 1e-5)
    norm.load_state_dict({"weight": torch.ones(8)}, assign=True)
    assert torch.equal(norm(torch.zeros(1, 8)), torch.zeros(1, 8))
