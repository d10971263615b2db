"""A model whose chat template loops, grows or reaches for what it must not have: bounded, and nobody else waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from rims_world import DEMO, Bystander, Rims, refused, refused_http

pytestmark = pytest.mark.e2e


def _say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("loop", "FAILED_PRECONDITION", "took longer than"),
        ("grow", "FAILED_PRECONDITION", "template"),
        ("long", "FAILED_PRECONDITION", "characters"),
        ("reach", "FAILED_PRECONDITION", "__class__"),
        ("write", "FAILED_PRECONDITION", "append"),
        ("refuse", "INVALID_ARGUMENT", "no such talk here"),
    ],
)
def test_a_bad_template_is_stopped_and_said_so(rims: Rims, tiny: str, text: str, status: str, says: str) -> None:
    with rims.client() as client:
        told = refused(lambda: client.generate(messages=_say(text), model=tiny, max_tokens=1))
        assert (told.status, told.code) == (status, "TEMPLATE_ERROR") and says in told.message
        http = refused_http(rims.post("/v1/chat/completions", {"messages": _say(text), "model": tiny}))
        assert (http.status, http.code) == (400, "template_error")
        # The same template serves those who do not provoke it.
        fine = client.generate(messages=_say("hi"), model=tiny, max_tokens=1, ignore_eos=True)
        assert len([t for c in fine for t in c.token_ids]) == 1


def test_who_asks_a_looping_template_waits_alone(rims: Rims, tiny: str) -> None:
    def loop(_: int) -> str:
        with rims.client() as client:
            return refused(lambda: client.generate(messages=_say("loop"), model=tiny, max_tokens=1)).code

    with Bystander(rims) as bystander, ThreadPoolExecutor(8) as threads, rims.client() as client:
        loops = [threads.submit(loop, n) for n in range(8)]
        # More loops than the gateway has threads, and other models' chats are still answered.
        answer = client.generate(messages=_say("What is the capital of France?"), model=DEMO, max_tokens=8)
        assert "".join(c.text for c in answer)
        bystander.more(10)
        assert {one.result(60) for one in loops} == {"TEMPLATE_ERROR"}


def test_a_plain_prompt_never_meets_the_template(rims: Rims, tiny: str) -> None:
    with rims.client() as client:
        plain = client.generate("loop", model=tiny, max_tokens=1, ignore_eos=True)
        assert len([t for c in plain for t in c.token_ids]) == 1
