from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import oracle, run
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.kernels.program import Program
from octavo_worker.models.base import LoadedModel
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.gguf_checkpoint import GgufCheckpoint
from octavo_worker.models.gguf_config import gguf_config
from octavo_worker.models.packed_weights import LayerWeights, PackedWeights, refine
from octavo_worker.models.precision import W8A8
from octavo_worker.models.registry import load_model
from octavo_worker.runtime.integer_arithmetic import IntegerArithmetic, IntegerRows
from octavo_worker.runtime.packed_runner import PackedRunner

LICENSE = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Größe, naïve façade; 東京; 🙂 and 1234567 + 89 = ",
    LICENSE[:2000],
]


@pytest.fixture(scope="module")
def loaded(demo_model_path: Path) -> LoadedModel:
    """The demo model as we read it."""
    return load_model(demo_model_path)


@pytest.fixture(scope="module")
def theirs(demo_model_path: Path):
    """The demo model as transformers reads it."""
    model = AutoModelForCausalLM.from_pretrained(
        demo_model_path.parent, gguf_file=demo_model_path.name, dtype=torch.float32
    )
    return model.eval()


def test_every_weight_equals_that_of_transformers(demo_model_path: Path, theirs) -> None:
    file = read_gguf(demo_model_path)
    expected = theirs.state_dict()
    with GgufCheckpoint(file, gguf_config(file)) as checkpoint:
        assert set(checkpoint.shapes) == set(expected) - {"lm_head.weight"}
        for name, shape in checkpoint.shapes.items():
            values = torch.full(shape, torch.nan)
            checkpoint.read_into(name, values)
            assert torch.equal(values, expected[name]), name


@pytest.mark.parametrize("prompt", PROMPTS, ids=["sentence", "code", "unicode", "licence"])
def test_logits_on_real_text_equal_those_of_transformers(loaded: LoadedModel, theirs, prompt: str) -> None:
    tokens = Tokenizer.from_bundle(loaded.bundle).encode(prompt)
    ours, expected = run(loaded.model, tokens), oracle(theirs, tokens)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-3)
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-3
    assert torch.equal(ours.argmax(-1)[clear], expected.argmax(-1)[clear])


def test_tokens_of_real_text_equal_those_of_transformers(loaded: LoadedModel, demo_model_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(demo_model_path.parent, gguf_file=demo_model_path.name)
    ours = Tokenizer.from_bundle(loaded.bundle)
    texts = [*PROMPTS, LICENSE, LICENSE.upper(), "<|im_start|>user\nHi 12.5!<|im_end|>\n", "don't  we'll\t\tgo\r\n"]
    for text in texts:
        plain = re.sub(r"\d", "", text)
        assert ours.encode(plain) == theirs.encode(plain), plain[:50]
    # The model's own tokenizer cuts digits off first, as llama.cpp does; the conversion of transformers forgets it,
    # which shows where a digit follows several blanks.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in texts:
        assert ours.encode(text) == theirs.encode(text), text[:50]


def test_a_chat_is_rendered_as_transformers_renders_it(loaded: LoadedModel, demo_model_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(demo_model_path.parent, gguf_file=demo_model_path.name)
    ours = Tokenizer.from_bundle(loaded.bundle)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(ours.chat(messages)) == list(expected)


def test_the_demo_model_is_what_the_catalogue_says(loaded: LoadedModel) -> None:
    assert loaded.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (loaded.source, loaded.quantization, loaded.num_parameters) == ("gguf", "Q4_1", 134_515_008)
    config = loaded.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.context_length, config.eos_ids, config.tie_embeddings) == (8192, (2,), True)


def test_the_layer_that_makes_massive_activations_gets_a_finer_matrix(demo_model_path: Path, theirs) -> None:
    model = load_model(demo_model_path, precision=W8A8)
    asked: list[list[int]] = []

    def refined(weights: PackedWeights, layers: list[int]) -> PackedWeights:
        asked.append(layers)
        with model.reopen() as checkpoint:
            return refine(weights, checkpoint, layers)

    arithmetic, config = IntegerArithmetic(), model.config
    one_block = arithmetic.attention.block_bytes(config.num_layers, config.num_kv_heads, config.head_dim)
    kv = torch.zeros(1, one_block, dtype=torch.uint8)
    PackedRunner(config=config, weights=model.model, arithmetic=arithmetic, kv=kv, num_threads=2, refine=refined)
    tokens = torch.tensor([Tokenizer.from_bundle(model.bundle).encode(PROMPTS[1])])
    with torch.no_grad():
        # Before each layer, and after the last one with its norm.
        states = theirs(tokens, output_hidden_states=True).hidden_states[:-1]
    massive = [bool(s.abs().max() > 1000 * s.abs().median()) and bool(s.abs().max() > 100) for s in states]
    first = massive.index(True)
    assert asked == [[first - 1]]
    # Both matrices together are those of the file to a few parts in 100,000.
    weight = theirs.state_dict()[f"model.layers.{first - 1}.mlp.down_proj.weight"].numpy()
    with model.reopen() as checkpoint:
        layer = refine(model.model, checkpoint, asked[0]).layers[first - 1]
    assert layer.down_rest is not None
    once, twice = (np.abs(weight - found).max() for found in _values_of(weight, layer))
    assert twice < once / 100 and all(other.down_rest is None for other in model.model.layers)


def _values_of(weight: np.ndarray, layer: LayerWeights) -> list[np.ndarray]:
    """What the packed down projection stands for, without and with its rest, by products with unit vectors."""
    found = []
    for linears in ((layer.down,), (layer.down, layer.down_rest)):
        rows = IntegerRows(weight.shape[1], weight.shape[1], 1)
        out = np.zeros((weight.shape[1], layer.down.matrix.padded_outputs), np.float32)
        ones = np.eye(weight.shape[1], dtype=np.float32)
        products = [rows.matmul(linear, out, adds=True) for linear in linears if linear is not None]
        Program([rows.take(ones, layer.down.matrix), *products]).run(weight.shape[1], 1)
        found.append(out[:, : weight.shape[0]].T)
    return found
