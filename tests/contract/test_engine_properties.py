"""What every scheduler must hold: checked over random arrivals, aborts, tiny pools and failing steps."""

import random
from dataclasses import dataclass, field

import pytest
from fakes.engines import Bench, make_request
from fakes.tiny_executor import TinyExecutor, expected_output, next_token
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.queueing import PriorityQueue
from octavo_worker.engine.types import FinishReason, Request

BLOCK_SIZE = 4


@dataclass
class Driver:
    """Sends random work through an engine, and checks each plan as it is made."""

    seed: int
    num_blocks: int
    queue: object = None
    num_drafts: int = 0
    limits: dict = field(default_factory=dict)
    live: dict[str, Request] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        executor = TinyExecutor(
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            fails=self.fails,
            propose=self.propose,
            lookahead=self.num_drafts,
        )
        self.is_fcfs = self.queue is None
        self.bench = Bench(
            num_blocks=self.num_blocks, block_size=BLOCK_SIZE, queue=self.queue, executor=executor, **self.limits
        )
        self.max_tokens = self.bench.limits.max_sequence_tokens

    def fails(self, plan):
        if any(row.id.request in self.bad for row in plan.rows):
            return True
        # A passing fault: the parts of the step succeed, so nobody may notice.
        return len(plan.rows) > 1 and self.random.random() < 0.05

    def propose(self, context, params) -> Draft:
        """Guesses of which each is right or wrong by chance."""
        tokens: list[int] = []
        for _ in range(self.random.randrange(self.num_drafts + 1)):
            right = next_token([*context, *tokens], params)
            tokens.append(right if self.random.random() < 0.7 else 96 - right)
        return Draft.chain(tuple(tokens))

    def make(self, id) -> Request:
        pick = self.random
        # Few distinct beginnings, so that prefixes are shared.
        base = pick.randrange(3)
        length = min(pick.choice([1, 2, 4, 5, 8, 9, 13, 20, 33]), self.max_tokens - 1)
        prompt = [(base * 7 + i // 6) % 97 for i in range(length)]
        if pick.random() < 0.3:
            prompt[-1] = pick.randrange(97)
        request = make_request(
            id,
            prompt,
            max_tokens=pick.choice([1, 2, 5, 9, 17, 40]),
            salt=pick.choice(["", "", "s"]),
            priority=pick.randrange(3),
            temperature=pick.choice([0.0, 1.0]),
            seed=pick.randrange(3),
            stop_token_ids=frozenset(pick.sample(range(97), 4)),
        )
        if pick.random() < 0.2:
            whole = expected_output(request, self.max_tokens)
            output = tuple(whole[: pick.randrange(len(whole) + 1)])
            request = make_request(
                id,
                prompt,
                output=output,
                salt=request.salt,
                priority=request.priority,
                max_tokens=request.params.max_tokens,
                temperature=request.params.temperature,
                seed=request.params.seed,
                stop_token_ids=request.params.stop_token_ids,
            )
        return request

    def arrive(self):
        id = f"r{len(self.requests)}"
        request = self.make(id)
        self.requests[id] = self.live[id] = request
        if self.random.random() < 0.04:
            self.bad.add(id)
        self.bench.add(request)
        self.forget_ended()

    def abort(self):
        if self.live:
            id = self.random.choice(sorted(self.live))
            self.bench.abort(id)
            self.aborted.add(id)
            self.bench.engine.check_integrity()
            self.forget_ended()

    def step(self):
        if not self.bench.engine.has_work:
            return
        num_plans = len(self.bench.executor.plans)
        oldest = next(iter(self.live), None)
        behind = {
            id for id, r in self.live.items() if r.output and len(self.bench.outcomes[id].tokens) == len(r.output)
        }
        self.bench.step()
        plans = self.bench.executor.plans[num_plans:]
        self.check_budgets(plans, behind)
        if self.is_fcfs and oldest is not None and oldest not in self.bad:
            rows = {row.id.request for plan in plans for row in plan.rows}
            assert oldest in rows, "the oldest request did not advance"
        self.forget_ended()

    def check_budgets(self, plans, behind):
        limits = self.bench.limits
        rows = [row for plan in plans for row in plan.rows]
        assert sum(len(row.tokens) + len(row.draft) for row in rows) <= limits.max_batch_tokens
        assert len(rows) <= limits.max_sequences
        assert all(len(row.tokens) <= (limits.max_chunk_tokens or 10**9) for row in rows)
        prompts = [row for row in rows if len(row.tokens) > 1 or not row.wants]
        decodes = [row for row in rows if len(row.tokens) == 1 and row.wants and row.params is None]
        if decodes:
            new = [row for row in prompts if row.id.request not in behind]
            assert sum(len(row.tokens) for row in new) <= limits.max_prompt_tokens_beside_decode
        stats = self.bench.engine.stats()
        if stats.num_preempted:
            assert not any(row.params for row in rows), "a step that preempted admitted somebody"

    def forget_ended(self):
        for id in [id for id in self.live if self.bench.outcomes[id].finish]:
            del self.live[id]

    def finish(self):
        num_left = sum(len(r.prompt) + r.params.max_tokens for r in self.live.values())
        # Alone, one after the other, with the smallest chunk: more would mean that somebody does not advance. Preempted
        # work is repeated, never that of the oldest.
        self.bench.run(max_steps=10 + num_left * max(1, len(self.live)))
        self.forget_ended()
        assert not self.live
        self.bench.assert_empty()

    def check_outcomes(self):
        for id, request in self.requests.items():
            outcome = self.bench.outcomes[id]
            expected = expected_output(request, self.max_tokens)
            if outcome.finish in (FinishReason.STOP, FinishReason.LENGTH):
                assert outcome.tokens == expected, id
                assert (outcome.finish is FinishReason.STOP) == (
                    expected[-1:] != [] and expected[-1] in request.params.stop_token_ids
                )
            else:
                assert outcome.tokens == expected[: len(outcome.tokens)], id
                assert outcome.finish is (FinishReason.ERROR if id in self.bad - self.aborted else outcome.finish)
                assert id in self.bad | self.aborted
            if id in self.bad and id not in self.aborted and len(expected) > len(request.output):
                assert outcome.finish is FinishReason.ERROR

    def drive(self, num_steps, arrival_rate, abort_rate):
        for _ in range(num_steps):
            while self.random.random() < arrival_rate and len(self.live) < 24:
                self.arrive()
            if self.random.random() < abort_rate:
                self.abort()
            self.step()
        self.finish()
        self.check_outcomes()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.sampled_from([2, 5, 8, 13, 40]),
    max_sequences=st.sampled_from([1, 2, 5, 9]),
    extra_batch=st.sampled_from([0, 1, 7, 50]),
    beside=st.sampled_from([1, 3, 8, 64]),
    chunk=st.sampled_from([None, 1, 3, 4, 16]),
    priority=st.booleans(),
    abort_rate=st.sampled_from([0.0, 0.2]),
    num_drafts=st.sampled_from([0, 0, 3]),
)
def test_random_work_gives_brute_force_tokens_and_leaks_nothing(
    seed, num_blocks, max_sequences, extra_batch, beside, chunk, priority, abort_rate, num_drafts
):
    driver = Driver(
        seed=seed,
        num_blocks=num_blocks,
        num_drafts=num_drafts,
        queue=PriorityQueue(steps_per_level=8) if priority else None,
        limits={
            "max_sequences": max_sequences,
            "max_batch_tokens": max_sequences + extra_batch,
            "max_prompt_tokens_beside_decode": beside,
            "max_chunk_tokens": chunk,
        },
    )
    driver.drive(num_steps=120, arrival_rate=0.4, abort_rate=abort_rate)


@pytest.mark.parametrize(("seed", "num_blocks"), [(1, 9), (2, 16), (3, 64)])
def test_thousands_of_steps_under_load_leave_the_books_balanced(seed, num_blocks):
    limits = {"max_sequences": 6, "max_batch_tokens": 24, "max_prompt_tokens_beside_decode": 6}
    driver = Driver(seed=seed, num_blocks=num_blocks, limits=limits)
    driver.drive(num_steps=3000, arrival_rate=0.5, abort_rate=0.05)
    outcomes = driver.bench.outcomes.values()
    # The run was worth its name: all that can happen did.
    assert sum(outcome.num_preemptions for outcome in outcomes) > 20 or num_blocks > 16
    assert sum(outcome.num_cached for outcome in outcomes) > 100
    assert {outcome.finish for outcome in outcomes} == set(FinishReason)


def test_with_priorities_nobody_starves_under_a_flood_of_more_urgent_work():
    steps_per_level, levels = 8, 2
    bench = Bench(num_blocks=8, max_sequences=2, queue=PriorityQueue(steps_per_level=steps_per_level))
    bench.add(make_request("low", range(9), priority=0, max_tokens=4))
    for step in range(400):
        if bench.outcomes["low"].finish:
            break
        bench.add(make_request(f"u{step}", [step % 97, 1, 2], priority=levels, max_tokens=3))
        bench.step()
    # Overtaken only by what came within the levels' steps: 16 requests of at most 4 steps each, two at a time.
    assert step <= steps_per_level * levels * 4
