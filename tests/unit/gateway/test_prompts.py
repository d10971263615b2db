"""A prompt is measured against its model before anything is computed for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from octavo_common.errors import InvalidArgument
from octavo_common.jobs.spec import ModelCard
from octavo_common.store import ArtifactStore
from octavo_gateway.prompts import Prompts
from octavo_gateway.requests import RawRequest
from octavo_gateway.validation import validate

CARD = ModelCard(
    name="m", digest="d", family="llama", numerics_id="n", tokenizer_digest="t",
    max_sequence_tokens=4000, context_length=4000, block_size=16, num_blocks=250, vocab_size=100,
)  # fmt: skip
RAW = RawRequest(token_ids=[1] * 1000)


@pytest.fixture
async def prompts() -> AsyncIterator[Prompts]:
    # Ids need no tokenizer, so nothing is asked of the store.
    made = Prompts(cast(ArtifactStore, None))
    yield made
    await made.close()


@pytest.mark.parametrize("max_tokens", [None, 3000, 1_000_000])
async def test_answers_are_cut_to_what_the_context_leaves_before_what_is_told_of_them_is_counted(
    prompts: Prompts, max_tokens: int | None
) -> None:
    def asks(**more: Any) -> Any:
        return validate(replace(RAW, max_tokens=max_tokens, logprobs=20, **more))

    # 3000 tokens are left: 15 answers tell 990,000 numbers, 16 tell 1,056,000.
    assert (await prompts.prepare(asks(n=15), CARD)).max_tokens == 3000
    with pytest.raises(InvalidArgument) as refused:
        await prompts.prepare(asks(n=16), CARD)
    assert (refused.value.code, refused.value.param) == ("TOO_MUCH_TOLD", "logprobs")
