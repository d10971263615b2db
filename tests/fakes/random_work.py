"""Sends random work through an engine over the tiny executor, and checks each plan as it is made."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from fakes.engines import Bench, make_beams, make_request
from fakes.naive_beams import expected_beams
from fakes.tiny_executor import TinyExecutor, expected_output, next_token
from octavo_worker.engine.plan import Draft
from octavo_worker.engine.styles import STYLES
from octavo_worker.engine.types import AdmissionError, FinishReason, Request, SeqId

BLOCK_SIZE = 4


@dataclass
class Driver:
    """Arrivals, aborts, steps, and what must come of them."""

    seed: int
    num_blocks: int
    queue: object = None
    style: str = "v1"
    num_host_slots: int = 0
    num_drafts: int = 0
    # Of requests: parts that want several choices, and that search with beams.
    choices_rate: float = 0.0
    beams_rate: float = 0.0
    limits: dict = field(default_factory=dict)
    live: dict[str, Request] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    # Choices that were aborted alone.
    left: set[SeqId] = field(default_factory=set)
    num_idle_steps: int = 0
    num_copies: int = 0
    num_stores: int = 0
    num_loads: int = 0

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
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            queue=self.queue,
            executor=executor,
            style=STYLES[self.style](),
            num_host_slots=self.num_host_slots,
            **self.limits,
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
        of_request = {
            "salt": pick.choice(["", "", "s"]),
            "priority": pick.randrange(3),
            "fair_key": pick.choice("xyz"),
            "due": pick.choice([None, len(self.requests) + pick.randrange(40)]),
        }
        params = {
            "max_tokens": pick.choice([1, 2, 5, 9, 17, 40]),
            "temperature": pick.choice([0.0, 1.0]),
            "seed": pick.randrange(3),
            "stop_token_ids": frozenset(pick.sample(range(97), 4)),
            "num_prompt_logprobs": pick.choice([None, None, None, 0]),
        }
        kind = pick.random()
        if kind < self.beams_rate:
            rules = {"length_penalty": pick.choice([0.0, 1.0]), "early_stopping": pick.choice([True, False, None])}
            params["max_tokens"] = min(params["max_tokens"], 9)
            return make_beams(id, prompt, width=pick.randrange(1, 5), **rules, **of_request, **params)
        if kind < self.beams_rate + self.choices_rate:
            return make_request(id, prompt, num_choices=pick.randrange(2, 5), **of_request, **params)
        request = make_request(id, prompt, **of_request, **params)
        if pick.random() < 0.2:
            whole = expected_output(request, self.max_tokens)
            output = tuple(whole[: pick.randrange(len(whole) + 1)])
            request = make_request(id, prompt, output=output, **of_request, **params)
        return request

    def arrive(self):
        id = f"r{len(self.requests)}"
        request = self.make(id)
        bad = self.random.random() < 0.04
        try:
            self.bench.add(request)
        except AdmissionError as error:
            assert error.code in ("PROMPT_TOO_LONG", "TOO_MANY_CHOICES")
            return
        self.requests[id] = self.live[id] = request
        if bad:
            self.bad.add(id)
        self.forget_ended()

    def abort(self):
        if self.live:
            id = self.random.choice(sorted(self.live))
            if self.random.random() < 0.3:
                self.left.update(delta.id for delta in self.bench.abort_choice(id, self.random.randrange(5)))
            else:
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
        deltas = self.bench.step()
        plans = self.bench.executor.plans[num_plans:]
        rows = [row for plan in plans for row in plan.rows]
        self.count(plans)
        self.check_budgets(rows, behind)
        self.check_writers(rows)
        self.check_groups(rows)
        if self.bench.engine.stats().num_preempted:
            begun = [delta for delta in deltas if "scheduled" in delta.events and delta.id.choice == 0]
            assert not begun, "a step that preempted admitted somebody"
        if oldest in {row.id.request for row in rows} or oldest in self.bad or oldest is None:
            self.num_idle_steps = 0
        elif self.is_fcfs:
            self.num_idle_steps += 1
            # A step for what is loaded; with v0, steps of prompts until as many run as may.
            bound = (self.num_host_slots > 0) + (self.style == "v0") * (2 * self.bench.limits.max_sequences + 2)
            assert self.num_idle_steps <= bound, "the oldest request did not advance"
        self.forget_ended()
        # Nobody reads them again.
        del self.bench.executor.plans[:]

    def count(self, plans):
        seen = {plan.step: plan.kv for plan in plans if plan.kv.stores_out or plan.kv.copies or plan.kv.loads}
        for kv in seen.values():
            self.num_copies += len(kv.copies)
            self.num_stores += len(kv.stores_out)
            self.num_loads += len(kv.loads)

    def check_budgets(self, rows, behind):
        limits = self.bench.scheduler.limits
        assert sum(len(row.tokens) + len(row.draft) for row in rows) <= limits.max_batch_tokens
        assert len(rows) <= limits.max_sequences
        assert all(len(row.tokens) <= (limits.max_chunk_tokens or 10**9) for row in rows)
        beams = {id for id, request in self.requests.items() if request.beam is not None}
        decodes = [row for row in rows if len(row.tokens) == 1 and (row.draws or row.num_candidates) and not row.params]
        prompts = [row for row in rows if len(row.tokens) > 1 or not (row.draws or row.num_candidates)]
        if decodes and self.style == "v1":
            new = [row for row in prompts if row.id.request not in behind | beams]
            assert sum(len(row.tokens) for row in new) <= limits.max_prompt_tokens_beside_decode
        if self.style == "v0":
            begun = [row for row in rows if row.params is not None and row.id.choice == 0 and not row.wants.start]
            assert not (begun and decodes), "a prompt beside rows that decode"

    def check_writers(self, rows):
        """Every row of a step writes into blocks of its own, whatever became of the step's parts."""
        written: list[int] = []
        for row in rows:
            table = self.bench.executor._tables.get(row.id, [])
            end = row.start + len(row.tokens) + len(row.draft)
            written += {table[p // BLOCK_SIZE] for p in range(row.start, end)} if table else []
        assert len(written) == len(set(written)), "two rows write one block"

    def check_groups(self, rows):
        """Beams are planned all or none: those with candidates are all that run, or the first alone."""
        for id, request in self.live.items():
            if request.beam is not None:
                mine = [row for row in rows if row.id.request == id]
                assert len({len(row.tokens) for row in mine}) <= 1
                assert len({bool(row.num_candidates) for row in mine}) <= 1

    def forget_ended(self):
        running = self.bench.scheduler._roster.requests
        for id in [id for id in self.live if id not in running]:
            del self.live[id]

    def finish(self):
        num_left = sum((len(r.prompt) + r.params.max_tokens) * 4 for r in self.live.values())
        # Alone, one after the other, with the smallest chunk: more would mean that somebody does not advance. Preempted
        # work is repeated, never that of the oldest.
        for _ in range(20 + 2 * num_left * max(1, len(self.live))):
            if not self.bench.engine.has_work:
                break
            self.step()
        self.forget_ended()
        assert not self.live
        self.bench.assert_empty()

    def outcomes(self, request):
        num = request.num_choices if request.beam is None else request.beam.width
        ids = [SeqId(request.id, choice) for choice in range(num)]
        return [self.bench.choices[id] for id in ids if id in self.bench.choices]

    def check_outcomes(self):
        for id, request in self.requests.items():
            outcomes = self.outcomes(request)
            if request.beam is not None:
                self.check_beams(request, outcomes)
                continue
            assert len(outcomes) == request.num_choices
            for choice, outcome in enumerate(outcomes):
                expected = expected_output(request, self.max_tokens, choice)
                if SeqId(id, choice) in self.left:
                    assert outcome.finish is FinishReason.ABORTED
                    assert outcome.tokens == expected[: len(outcome.tokens)]
                else:
                    self.check_choice(id, request, outcome, expected)
            scored = [told.logprob for told in outcomes[0].prompt_logprobs]
            whole = id not in self.bad | self.aborted and SeqId(id, 0) not in self.left
            if request.params.num_prompt_logprobs is not None and whole:
                assert len(scored) in (0, len(request.prompt) - 1)

    def check_choice(self, id, request, outcome, expected):
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

    def check_beams(self, request, outcomes):
        if request.id in self.bad | self.aborted:
            assert outcomes[0].finish is not None
            if outcomes[0].finish in (FinishReason.ABORTED, FinishReason.ERROR):
                return
        expected = expected_beams(
            request,
            self.bench.limits,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            lookahead=self.num_drafts,
        )
        assert [tuple(outcome.tokens) for outcome in outcomes] == [tokens for _, tokens in expected], request.id
        assert [outcome.score for outcome in outcomes] == pytest.approx([score for score, _ in expected])

    def drive(self, num_steps, arrival_rate, abort_rate):
        for _ in range(num_steps):
            while self.random.random() < arrival_rate and len(self.live) < 24:
                self.arrive()
            if self.random.random() < abort_rate:
                self.abort()
            self.step()
        self.finish()
        self.check_outcomes()
