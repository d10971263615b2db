"""Structured output from the clients to the grammar and back, over a model whose weights are random."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import openai
import pytest
from answers_world import ModelWorker, Platform, expected, tiny_worker, within
from checkpoints import make_llama
from fakes.gateway_world import World

import octavo
from octavo_common.errors import InvalidArgument

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    make_llama(folder, max_position_embeddings=256)
    return folder


@pytest.fixture
async def served(empty_world: World, model) -> Platform:
    made = Platform(empty_world)
    await made.start(ModelWorker(empty_world, model))
    return made


async def test_answers_follow_what_was_asked_for_over_every_rim(served: Platform):
    sdk, http = served.sdk(), served.openai()
    hot = {"temperature": 1.5, "max_tokens": 100}

    async def by_sdk(**structured):
        return (await sdk.generate("Answer:", seed=3, **hot, **structured).wait()).text

    async def by_http(**fields):
        answer = await http.completions.create(model="tiny", prompt="Answer:", seed=3, **hot, extra_body=fields)
        return answer.choices[0].text

    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    texts = await within(
        asyncio.gather(
            by_sdk(json_schema=SCHEMA),
            by_sdk(json_schema=json.dumps(SCHEMA)),
            by_http(response_format=named),
            by_http(structured_outputs={"json": SCHEMA}),
            by_http(guided_json=SCHEMA),
            by_sdk(regex="[ab]{3}-[0-9]{2}"),
            by_http(guided_regex="[ab]{3}-[0-9]{2}"),
            by_sdk(choice=["yes", "no", "maybe so"]),
            by_http(structured_outputs={"choice": ["yes", "no"]}),
            by_sdk(grammar='root ::= "ab" | "cd" root'),
        ),
        60,
    )
    for text in texts[:5]:
        found = json.loads(text)
        assert isinstance(found["ok"], bool) and found["size"] in ("small", "large") and len(found) == 2
    assert all(re.fullmatch("[ab]{3}-[0-9]{2}", text) for text in texts[5:7])
    assert texts[7] in ("yes", "no", "maybe so") and texts[8] in ("yes", "no")
    assert re.fullmatch("(cd)*ab", texts[9])
    beams = await sdk.generate("Answer:", beam_width=3, n=2, max_tokens=20, choice=["yes", "no", "maybe so"]).wait()
    assert {choice.text for choice in beams.choices} <= {"yes", "no", "maybe so"} and len(beams.choices) == 2
    assert beams.choices[0].text != beams.choices[1].text
    several = await sdk.generate("Answer:", seed=3, n=3, **hot, choice=["yes", "no", "maybe"]).wait()
    assert {choice.text for choice in several.choices} <= {"yes", "no", "maybe"}
    assert [choice.finish_reason for choice in several.choices] == ["stop"] * 3


async def test_a_grammar_that_cannot_be_used_fails_its_job_with_a_clear_error(served: Platform):
    bad = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        await within(served.sdk().generate("x", json_schema=bad, max_tokens=5).wait(), 60)
    assert caught.value.code == "INVALID_GRAMMAR" and caught.value.hint
    with pytest.raises(openai.BadRequestError) as refused:
        await served.openai().completions.create(
            model="tiny", prompt="x", max_tokens=5, extra_body={"structured_outputs": {"regex": "(("}}
        )
    assert refused.value.code == "invalid_grammar"
    # What is no JSON at all never becomes a job.
    with pytest.raises(octavo.InvalidArgumentError) as early:
        await served.sdk().generate("x", json_schema="{", max_tokens=5).wait()
    assert early.value.param == "structured_output" and not early.value.job_id


class SlowGrammars:
    """Compiles until it is let go, and refuses then."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def compile(self, kind: str, text: str = "") -> str:
        self.begun.set()
        assert self.go_on.wait(20)
        raise InvalidArgument("it took too long", code="INVALID_GRAMMAR")


async def test_nobody_waits_for_anothers_grammar(empty_world: World):
    slow, platform = SlowGrammars(), Platform(empty_world)
    await platform.start(tiny_worker(empty_world, grammars=slow))
    waiting = asyncio.ensure_future(platform.sdk().generate("x", regex="a", max_tokens=3, temperature=0).wait())
    try:
        assert await asyncio.to_thread(slow.begun.wait, 20)
        other = await within(platform.sdk().generate("hello", max_tokens=3, temperature=0).wait())
        assert list(other.token_ids) == expected("hello", 3)
        assert not waiting.done()
        # A cancelled one is not kept by its grammar.
        third = platform.sdk().generate("x", regex="b", max_tokens=3)
        await third.start()
        await third.cancel()
        await empty_world.until(third.job_id, "cancelled")
    finally:
        slow.go_on.set()
    with pytest.raises(octavo.InvalidArgumentError):
        await waiting
