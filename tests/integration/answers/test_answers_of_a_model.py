"""What the clients are told of a real model's tokens is what transformers says of them."""

from __future__ import annotations

import pytest
import torch
from answers_world import ModelWorker, Platform, within
from checkpoints import make_llama
from fakes.gateway_world import World

PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    return folder, make_llama(folder, max_position_embeddings=256)


@pytest.fixture
async def served(empty_world: World, model) -> Platform:
    made = Platform(empty_world)
    await made.start(ModelWorker(empty_world, model[0]))
    return made


def oracle(reference, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of what follows each token."""
    with torch.no_grad():
        return reference(torch.tensor([ids])).logits[0].log_softmax(-1)


def check(told, row: torch.Tensor, token: int, num_top: int) -> None:
    assert told.logprob == pytest.approx(float(row[token]), abs=1e-3)
    best = row.topk(num_top)
    assert [logprob for _, logprob in told.top] == pytest.approx(best.values.tolist(), abs=1e-3)
    # Of two that are as good as equal either may come first.
    assert all(float(row[one]) == pytest.approx(logprob, abs=1e-3) for one, logprob in told.top)


async def test_log_probabilities_of_answer_and_prompt_equal_transformers(served: Platform, model):
    asked = {"token_ids": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    result = await within(served.sdk().generate(**asked, logprobs=5, prompt_logprobs=3).wait(), 60)
    rows = oracle(model[1], [*PROMPT, *result.token_ids])
    for n, told in enumerate(result.logprobs):
        check(told, rows[len(PROMPT) - 1 + n], result.token_ids[n], 5)
        assert told.rank == 1
    assert len(result.prompt_logprobs) == len(PROMPT) and result.prompt_logprobs[0].logprob is None
    for n, told in enumerate(result.prompt_logprobs[1:], 1):
        check(told, rows[n - 1], PROMPT[n], 3)
    # Again: the prompt's are not served from the prefix cache, and asking changes no token.
    again = await within(served.sdk().generate(**asked, prompt_logprobs=3).wait(), 60)
    assert (again.prompt_logprobs, again.token_ids) == (result.prompt_logprobs, result.token_ids)
    assert again.usage.cached_tokens == 0
    # The harnesses' way to ask for a prompt alone.
    completion = await served.openai().completions.create(
        model="tiny", prompt=PROMPT, max_tokens=0, echo=True, logprobs=3
    )
    found = completion.choices[0].logprobs
    assert found is not None and completion.usage is not None and completion.usage.completion_tokens == 0
    assert found.token_logprobs == [told.logprob for told in result.prompt_logprobs]
    assert all(len(top) in (3, 4) for top in found.top_logprobs[1:])


async def test_processed_ones_say_what_the_token_was_chosen_by(served: Platform, model):
    asked = {"token_ids": PROMPT, "max_tokens": 4, "temperature": 0.5, "seed": 5, "ignore_eos": True}
    sdk = served.sdk()
    raw = await within(sdk.generate(**asked, logprobs=0).wait(), 60)
    processed = await within(sdk.generate(**asked, logprobs=0, logprobs_mode="processed").wait(), 60)
    assert raw.token_ids == processed.token_ids
    rows = oracle(model[1], [*PROMPT, *raw.token_ids])[len(PROMPT) - 1 :]
    for n, token in enumerate(raw.token_ids):
        assert raw.logprobs[n].logprob == pytest.approx(float(rows[n][token]), abs=1e-3)
        hot = (rows[n] / 0.5).log_softmax(-1)
        assert processed.logprobs[n].logprob == pytest.approx(float(hot[token]), abs=2e-3)


async def test_the_score_of_a_beam_is_the_sum_of_its_log_probabilities_by_its_length(served: Platform, model):
    stream = served.sdk().generate(
        token_ids=PROMPT, max_tokens=5, n=3, beam_width=3, length_penalty=0.5, ignore_eos=True, logprobs=1
    )
    result = await within(stream.wait(), 60)
    for choice in result.choices:
        rows = oracle(model[1], [*PROMPT, *choice.token_ids])[len(PROMPT) - 1 :]
        total = sum(float(rows[n][token]) for n, token in enumerate(choice.token_ids))
        assert choice.score == pytest.approx(total / len(choice.token_ids) ** 0.5, abs=5e-3)
        assert sum(told.logprob for told in choice.logprobs) == pytest.approx(total, abs=5e-3)
    with torch.no_grad():
        found = model[1].generate(
            torch.tensor([PROMPT]), num_beams=3, num_return_sequences=3, max_new_tokens=5, length_penalty=0.5,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    assert [list(choice.token_ids) for choice in result.choices] == found[:, len(PROMPT) :].tolist()


async def test_penalties_and_bans_change_what_comes(served: Platform):
    sdk = served.sdk()
    asked = {"token_ids": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    free = await within(sdk.generate(**asked).wait(), 60)
    banned = free.token_ids[0]
    other = await within(sdk.generate(**asked, logit_bias={banned: -100}).wait(), 60)
    assert banned not in other.token_ids
    once = await within(sdk.generate(**asked, frequency_penalty=2.0, presence_penalty=2.0).wait(), 60)
    assert once.usage.completion_tokens == 12
    few = await within(sdk.generate(**asked, allowed_token_ids=[70, 71]).wait(), 60)
    assert set(few.token_ids) <= {70, 71}
