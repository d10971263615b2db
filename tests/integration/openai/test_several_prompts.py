"""Several prompts in one completion, asked for by the `openai` package: OpenAI numbers the choices by prompt."""

from __future__ import annotations

import asyncio
from uuid import UUID

import openai
import pytest
from http_world import HttpWorld, eventually

from octavo_common.jobs.model import Job, TenantLimits
from octavo_common.jobs.spec import GenerationSpec, JobFailure


def prompts_letters(job: Job) -> list[int]:
    """Tokens that tell whose they are: the prompt's last letter, again and again."""
    return [job.prompt_ids[-1]] * GenerationSpec.from_json(dict(job.payload)).max_tokens


async def waiting(http: HttpWorld, number: int) -> list[UUID]:
    """The jobs in the queue, in the order of their prompts' last letters, once there are so many."""
    async with asyncio.timeout(10):
        while len(queue := await http.worker.placement.queue(200)) < number:
            await asyncio.sleep(0.01)
    jobs = [await http.world.job(queued.id) for queued in queue]
    return [job.id for job in sorted(jobs, key=lambda job: job.prompt_ids[-1])]


async def nothing_waits(http: HttpWorld) -> bool:
    return await http.worker.placement.queue(10) == []


async def serve_all(http: HttpWorld, number: int, *, last_first: bool = False) -> list[UUID]:
    found = await waiting(http, number)
    for job_id in reversed(found) if last_first else found:
        await http.worker.take(job_id)
        await http.worker.release_tokens(job_id, 2)
    for job_id in reversed(found) if last_first else found:
        assert await http.worker.finish(job_id)
    return found


@pytest.mark.parametrize("prompt", [["xa", "b", "yyc"], [[120, 97], [98], [121, 121, 99]]])
async def test_choices_are_numbered_by_prompt_and_usage_is_of_all(http: HttpWorld, prompt):
    http.worker.script = prompts_letters
    serving = asyncio.ensure_future(serve_all(http, 3, last_first=True))
    create = http.openai().completions.with_raw_response.create
    raw = await create(model="tiny", prompt=prompt, max_tokens=4)
    jobs, answer = await serving, raw.parse()
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (0, "aaaa", "length"),
        (1, "bbbb", "length"),
        (2, "cccc", "length"),
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 12, 18)
    assert raw.headers["x-octavo-job"] == ", ".join(map(str, jobs))
    assert answer.id == f"cmpl-{jobs[0]}"


async def test_streams_of_several_prompts_come_through_each_other_by_index(http: HttpWorld):
    http.worker.script = prompts_letters
    stream = await http.openai().completions.create(
        model="tiny",
        prompt=["a", "b"],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    first, second = await waiting(http, 2)
    for job_id in (first, second):
        await http.worker.take(job_id)
    order, texts, reasons, usages = [], {0: "", 1: ""}, {}, []
    # Each piece brings the other prompt's next one, so none can wait for the end of the other.
    await http.worker.release_tokens(second, 2)
    async for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
            if choice.text:
                order.append(choice.index)
                other = (first, second)[1 - choice.index]
                if len(order) < 4:
                    await http.worker.release_tokens(other, 2)
                elif len(order) == 4:
                    assert await http.worker.finish(first)
                    assert await http.worker.finish(second)
    assert order[:4] == [1, 0, 1, 0]
    assert (texts, reasons) == ({0: "aaaaaa", 1: "bbbbbb"}, {0: "length", 1: "length"})
    assert [(u.prompt_tokens, u.completion_tokens) for u in usages] == [(2, 12)]


async def test_a_client_that_leaves_cancels_all_its_prompts(http: HttpWorld):
    stream = await http.openai().completions.create(model="tiny", prompt=["a", "b", "c"], max_tokens=6, stream=True)
    jobs = await waiting(http, 3)
    await http.worker.take(jobs[1])
    await stream.close()

    async def all_cancelled() -> bool:
        rows = [await http.world.job(job_id) for job_id in jobs]
        return all(row.cancel_requested or row.state == "cancelled" for row in rows)

    await eventually(all_cancelled)


async def test_one_prompt_that_fails_ends_the_request_and_cancels_the_others(http: HttpWorld):
    asking = asyncio.ensure_future(http.openai().completions.create(model="tiny", prompt=["a", "b"], max_tokens=6))
    first, second = await waiting(http, 2)
    await http.worker.take(second)
    failure = JobFailure(code="INVALID_GRAMMAR", message="no", status="INVALID_ARGUMENT", param="structured_output")
    await http.worker.fail(second, failure, 3)
    with pytest.raises(openai.BadRequestError) as caught:
        await asking
    assert caught.value.code == "invalid_grammar"

    async def cancelled() -> bool:
        return (await http.world.job(first)).state == "cancelled"

    await eventually(cancelled)


async def test_prompts_are_accepted_all_or_none(http: HttpWorld):
    await http.world.tenants.set_limits("acme", TenantLimits(max_queued=2))
    client = http.openai()
    with pytest.raises(openai.RateLimitError):
        await client.completions.create(
            model="tiny", prompt=["a", "b", "c"], max_tokens=2, extra_body={"on_disconnect": "detach"}
        )
    await eventually(lambda: nothing_waits(http))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", ""], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        (["a", "x" * 200], "prompt[1]"),
        ([[1], [2, 999]], "prompt[1]"),
        (["a"] * 129, "prompt"),
        (["a", [1]], "prompt[1]"),
        ([], "prompt"),
    ],
)
async def test_a_bad_prompt_is_refused_by_its_number_and_none_is_run(http: HttpWorld, prompt, param):
    answer = await http.raw().post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.json()
    await eventually(lambda: nothing_waits(http))


async def test_the_same_idempotency_key_finds_the_same_jobs(http: HttpWorld):
    http.worker.script = prompts_letters
    client = http.openai()

    def ask():
        return client.completions.with_raw_response.create(
            model="tiny", prompt=["a", "b"], max_tokens=2, extra_headers={"Idempotency-Key": "once"}
        )

    serving = asyncio.ensure_future(serve_all(http, 2))
    first = await ask()
    await serving
    again = await ask()
    assert again.headers["x-octavo-job"] == first.headers["x-octavo-job"]
    assert [c.text for c in again.parse().choices] == ["aa", "bb"]
