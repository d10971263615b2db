"""bfloat16 beside transformers in bfloat16: a random checkpoint of each family, tokens within a tie, and less error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bench import EngineBench
from checkpoints import make_model

from octavo_worker.models.registry import load_model

NEW, LENGTHS = 32, (1, 15, 16, 17, 33, 48, 100, 150)
# Of the largest logit: a step of bfloat16 is up to 8e-3 of a number, and transformers' logits are rounded to it.
TIE = 2e-2
UPPER = {"use_sliding_window": True, "max_window_layers": 1}
SHAPES = {
    "llama": {"head_dim": 16},
    "mistral": {"sliding_window": 7, "head_dim": 32},
    "qwen2": {"sliding_window": 20, **UPPER},
    "qwen3": {"head_dim": 64, "tie_word_embeddings": False},
}


@pytest.fixture(scope="module", params=SHAPES)
def world(request, tmp_path_factory):
    """Our model in bfloat16, that of transformers, and the latter's numbers computed in float32."""
    folder = tmp_path_factory.mktemp("short")
    shape = {"hidden_size": 96, "intermediate_size": 160, "max_position_embeddings": 256, **SHAPES[request.param]}
    made = make_model(folder, request.param, **shape)
    theirs = [type(made).from_pretrained(folder, dtype=torch.bfloat16).eval() for _ in range(2)]
    longest = np.random.default_rng(11).integers(2, 330, 150).tolist()
    return load_model(folder, precision="bfloat16"), theirs[0], theirs[1].float(), longest


def logits_of(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double()


@pytest.mark.parametrize("chunk", [5, None])
def test_greedy_tokens_are_those_of_transformers_within_a_tie(world, chunk) -> None:
    loaded, theirs, _, longest = world
    bench = EngineBench(loaded, max_chunk_tokens=chunk)
    for length in LENGTHS:
        bench.add(str(length), longest[:length], NEW)
    bench.run()
    assert not bench.errors
    for length in LENGTHS:
        answer = bench.tokens[str(length)]
        logits = logits_of(theirs, longest[:length] + answer)[length - 1 : -1]
        lacks = logits.max(dim=1).values - logits[torch.arange(NEW), torch.tensor(answer)]
        assert lacks.max() <= TIE * logits.abs().max(), length


def test_log_probabilities_are_nearer_to_float32_than_those_of_transformers(world) -> None:
    loaded, theirs, exact, longest = world
    bench, found = EngineBench(loaded), []
    bench.add("prompt", longest, 1, num_prompt_logprobs=0)
    while bench.engine.has_work:
        for delta in bench.engine.step():
            found += delta.prompt_logprobs
    ours = torch.tensor([told.logprob for told in found if told is not None])
    nexts = torch.tensor(longest[1:])
    wanted, rounded = (
        logits_of(model, longest)[:-1].log_softmax(-1).gather(-1, nexts[:, None])[:, 0] for model in (exact, theirs)
    )
    assert ours.shape == wanted.shape
    assert (ours - wanted).square().mean() < (rounded - wanted).square().mean()
