"""n, best_of and beams from the clients to the engine and back."""

from __future__ import annotations

import grpc
import pytest
from answers_world import SEEDED, Platform, expected, text_of, tiny_worker, within
from fakes.gateway_world import World

import octavo
from octavo.v1 import gateway_pb2
from octavo_common.jobs.model import Resumption

PROMPT = "hello"


async def test_several_answers_stream_apart_and_end_in_one_result(platform: Platform):
    stream = platform.sdk().generate(PROMPT, n=3, max_tokens=12, **SEEDED)
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async for chunk in stream:
        assert chunk.first_token == len(ids[chunk.choice])
        ids[chunk.choice] += chunk.token_ids
    result = stream.result
    assert result is not None
    wanted = [expected(PROMPT, 12, choice, **SEEDED) for choice in range(3)]
    assert [list(choice.token_ids) for choice in result.choices] == wanted == list(ids.values())
    assert [choice.text for choice in result.choices] == [text_of(tokens) for tokens in wanted] == list(stream.texts)
    assert (result.text, result.usage.completion_tokens) == (text_of(wanted[0]), 36)
    job = await platform.sdk().jobs.get(stream.job_id)
    assert job.result == result


async def test_the_blocking_client_sees_the_same(platform: Platform):
    def ask(client: octavo.Client):
        return client.generate(PROMPT, n=2, max_tokens=6, **SEEDED).wait()

    result = await platform.blocking(ask)
    assert [list(c.token_ids) for c in result.choices] == [expected(PROMPT, 6, c, **SEEDED) for c in range(2)]


async def test_a_stop_string_ends_one_answer_and_the_others_go_on(platform: Platform):
    wanted = [expected(PROMPT, 20, choice, **SEEDED) for choice in range(2)]
    stop = next(
        text_of(wanted[0])[at : at + 2]
        for at in range(4, 18)
        if text_of(wanted[0])[at : at + 2] not in text_of(wanted[1])
    )
    result = await within(platform.sdk().generate(PROMPT, n=2, max_tokens=20, stop=stop, **SEEDED).wait())
    whole = text_of(wanted[0])
    assert [c.finish_reason for c in result.choices] == ["stop", "length"]
    assert [c.text for c in result.choices] == [whole[: whole.index(stop)], text_of(wanted[1])]


async def test_the_best_of_several_come_at_the_end(platform: Platform):
    stream = platform.sdk().generate(PROMPT, n=2, best_of=4, max_tokens=5, **SEEDED)
    chunks = [chunk async for chunk in stream]
    result = stream.result
    assert result is not None and sorted(chunk.choice for chunk in chunks) == [0, 1]
    everything = [expected(PROMPT, 5, choice, **SEEDED) for choice in range(4)]
    assert all(list(choice.token_ids) in everything for choice in result.choices)
    scores = [choice.score for choice in result.choices]
    assert None not in scores and scores == sorted(scores, reverse=True)
    assert result.usage.completion_tokens == 20 and result.logprobs == ()


async def test_beams_come_with_their_scores_at_the_end(platform: Platform):
    stream = platform.sdk().generate(PROMPT, n=2, beam_width=4, max_tokens=4, length_penalty=0.5)
    chunks = [chunk async for chunk in stream]
    result = stream.result
    assert result is not None and [len(chunk.token_ids) for chunk in chunks] == [4, 4]
    assert result.choices[0].score >= result.choices[1].score  # type: ignore[operator]
    assert result.choices[0].token_ids != result.choices[1].token_ids
    assert (await platform.sdk().jobs.get(stream.job_id)).result == result


async def test_a_search_that_finds_less_than_was_asked_for_ends_all_the_same(platform: Platform):
    result = await within(platform.sdk().generate(PROMPT, n=3, beam_width=3, max_tokens=0, echo=True).wait())
    assert [choice.text for choice in result.choices] == [PROMPT] * 3


@pytest.mark.parametrize("chat", [True, False])
async def test_openais_client_gets_several_choices_whole_and_streamed(platform: Platform, chat: bool):
    prompt = "user: hello\nassistant:" if chat else PROMPT
    wanted = [text_of(expected(prompt, 8, choice, **SEEDED)) for choice in range(3)]
    client, asked = platform.openai(), {"model": "tiny", "n": 3, "max_tokens": 8, **SEEDED}
    if chat:
        asked["messages"] = [{"role": "user", "content": "hello"}]
        answer = await client.chat.completions.create(**asked)
        texts = [choice.message.content for choice in answer.choices]
        stream = await client.chat.completions.create(**asked, stream=True)
    else:
        answer = await client.completions.create(prompt=PROMPT, **asked)
        texts = [choice.text for choice in answer.choices]
        stream = await client.completions.create(prompt=PROMPT, **asked, stream=True)
    assert texts == wanted and [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 24
    parts, ends = ["", "", ""], ["", "", ""]
    async for chunk in stream:
        (choice,) = chunk.choices
        parts[choice.index] += (choice.delta.content or "") if chat else choice.text
        ends[choice.index] += choice.finish_reason or ""
    assert (parts, ends) == (wanted, ["length"] * 3)


async def test_openais_client_gets_beams_by_vllms_names(platform: Platform):
    extra = {"use_beam_search": True, "length_penalty": 0.0, "early_stopping": "never"}
    answer = await platform.openai().completions.create(
        model="tiny", prompt=PROMPT, n=2, best_of=3, max_tokens=3, extra_body=extra
    )
    scores = [choice.octavo["score"] for choice in answer.choices]  # type: ignore[attr-defined]
    assert scores == sorted(scores, reverse=True) and answer.usage.completion_tokens == 6


async def test_a_broken_connection_goes_on_where_each_answer_was(platform: Platform):
    platform.worker.executor.step_s = 0.01
    job = await platform.sdk().submit(PROMPT, n=2, max_tokens=40, **SEEDED)
    wanted = [expected(PROMPT, 40, choice, **SEEDED) for choice in range(2)]
    stub = platform.world.client(platform.gateway).generation
    metadata = (("authorization", f"Bearer {platform.world.key}"),)
    received: list[list[int]] = [[], []]
    for num_wanted in (3, 9, 1000):
        request = gateway_pb2.ResumeGenerationRequest(
            job_id=job.id,
            token_ids=received[0],
            others=[gateway_pb2.TokenInput(ids=received[1])],
            on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH,
        )
        call = stub.ResumeGeneration(request, metadata=metadata, timeout=20)
        async for message in call:
            if message.event.WhichOneof("event") == "tokens":
                tokens = message.event.tokens
                assert tokens.first_token == len(received[tokens.choice])
                received[tokens.choice] += tokens.token_ids
            if sum(map(len, received)) >= num_wanted:
                break
        call.cancel()
    assert received == wanted


async def test_the_row_has_the_rest_of_each_answer_when_no_worker_has_it(platform: Platform):
    sdk = platform.sdk()
    job = await sdk.submit(PROMPT, n=2, max_tokens=6, logprobs=0, **SEEDED)
    done = await sdk.wait(job.id)
    assert done.result is not None and len(done.result.choices) == 2
    # With the first two tokens of the first answer; those of the other are all new.
    stream = sdk.attach(job.id, token_ids=done.result.token_ids[:2])
    chunks = [chunk async for chunk in stream]
    assert [(chunk.choice, chunk.first_token, len(chunk.logprobs)) for chunk in chunks] == [(0, 2, 4), (1, 0, 6)]
    assert stream.result is not None
    assert [c.token_ids for c in stream.result.choices] == [c.token_ids for c in done.result.choices]
    assert chunks[0].logprobs == done.result.logprobs[2:]


async def test_a_worker_that_leaves_gives_several_answers_back_unbegun(platform: Platform):
    platform.worker.executor.step_s = 0.02
    job = await platform.sdk().submit(PROMPT, n=2, max_tokens=200, **SEEDED)
    await platform.world.until(job.id, "running")
    platform.placing.cancel()
    platform.worker.lifecycle.stop("the test takes it away")
    row = await platform.world.until(job.id, "queued", timeout_s=15)
    assert (row.emitted_ids, row.total_losses) == ((), 0)


async def test_a_reader_with_other_tokens_of_an_answer_is_refused(platform: Platform):
    job = await platform.sdk().submit(PROMPT, n=2, max_tokens=4, **SEEDED)
    done = await platform.sdk().wait(job.id)
    assert done.result is not None
    first = list(done.result.token_ids)
    stub = platform.world.client(platform.gateway).generation
    metadata = (("authorization", f"Bearer {platform.world.key}"),)
    request = gateway_pb2.ResumeGenerationRequest(
        job_id=job.id, token_ids=first, others=[gateway_pb2.TokenInput(ids=[first[0] + 1])]
    )
    call = stub.ResumeGeneration(request, metadata=metadata, timeout=20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_more_answers_than_a_step_has_rows_are_refused_as_what_they_are(empty_world: World):
    platform = Platform(empty_world)
    await platform.start(tiny_worker(empty_world, limits={"max_sequences": 4}))
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        await within(platform.sdk().generate(PROMPT, n=5, max_tokens=2).wait())
    assert caught.value.code == "TOO_MANY_CHOICES"
    result = await within(platform.sdk().generate(PROMPT, n=4, max_tokens=2, **SEEDED).wait())
    assert len(result.choices) == 4


@pytest.mark.parametrize("exact", [True, False])
async def test_a_lost_worker_ends_a_stream_of_several_unless_numbers_are_exact(platform: Platform, exact: bool):
    """Where they are, the job is run again and what was sent is skipped; else the job goes on without its stream."""
    if exact:

        async def is_exact(one: object, other: object) -> bool:
            return True

        platform.gateway.gateway.hub._is_exact = is_exact
    platform.worker.executor.step_s = 0.01
    stream = platform.sdk().generate(PROMPT, n=2, max_tokens=40, **SEEDED)
    chunks = aiter(stream)
    for _ in range(4):
        await anext(chunks)
    # As a gateway does that has lost the job's worker.
    row, owner = await platform.world.job(stream.job_id), platform.gateway.gateway.hub.owner
    again = await platform.world.streams.resume(
        row.id, Resumption(owner=owner, fence=row.fence, emitted_ids=(), worker_dead=False)
    )
    assert again is not None and again.emitted_ids == ()
    wanted = [expected(PROMPT, 40, choice, **SEEDED) for choice in range(2)]
    if exact:
        async for _ in chunks:
            pass
        assert stream.result is not None
        assert [list(c.token_ids) for c in stream.result.choices] == wanted
        return
    with pytest.raises(octavo.AbortedError) as caught:
        async for _ in chunks:
            pass
    assert (caught.value.code, caught.value.job_id) == ("STREAM_RESTARTED", stream.job_id)
    job = await platform.sdk().wait(stream.job_id, timeout_s=15)
    assert job.result is not None and [list(c.token_ids) for c in job.result.choices] == wanted
