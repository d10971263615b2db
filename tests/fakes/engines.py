"""Builds engines over the tiny executor."""

from __future__ import annotations

from dataclasses import dataclass, field

from fakes.tiny_executor import TinyExecutor
from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.core import Engine
from octavo_worker.engine.ports import LocalKV, NeverExit
from octavo_worker.engine.queueing import FcfsQueue
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.types import BeamParams, Delta, FinishReason, Limits, Request, SamplingParams, SeqId


@dataclass
class Outcome:
    """What came of one choice."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    num_cached: int = 0
    num_preemptions: int = 0
    events: list[str] = field(default_factory=list)
    score: float | None = None
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)


class Bench:
    """An engine, its parts, and everything that came out of it so far."""

    def __init__(
        self,
        *,
        num_blocks=64,
        block_size=4,
        queue=None,
        executor=None,
        exit_policy=None,
        kv=None,
        stretches_beyond=None,
        style=None,
        num_host_slots=0,
        **limits,
    ):
        lookahead = executor.lookahead if executor else 0
        limits.setdefault("max_batch_tokens", 64)
        limits.setdefault("max_sequences", 8)
        limits.setdefault("max_prompt_tokens_beside_decode", 8)
        limits.setdefault("max_sequence_tokens", num_blocks * block_size - lookahead)
        self.limits = Limits(**limits)
        self.pool = BlockPool(num_blocks, block_size)
        self.queue = FcfsQueue() if queue is None else queue
        self.executor = executor or TinyExecutor(num_blocks=num_blocks, block_size=block_size)
        self.scheduler = Scheduler(
            pool=self.pool,
            limits=self.limits,
            queue=self.queue,
            style=style,
            num_host_slots=num_host_slots,
            kv=kv or LocalKV(),
            exit_policy=exit_policy or NeverExit(),
            lookahead=lookahead,
            extras=(("model", "tiny"),),
            stretches_beyond=stretches_beyond,
        )
        self.engine = Engine(self.scheduler, self.executor)
        # Of first choices; those of all are in `choices`.
        self.outcomes: dict[str, Outcome] = {}
        self.choices: dict[SeqId, Outcome] = {}

    def add(self, request: Request) -> None:
        """Add a request and keep what came of it."""
        deltas = self.engine.add(request)
        first = Outcome(tokens=list(request.output))
        self.outcomes[request.id] = self.choices[SeqId(request.id, 0)] = first
        for choice in range(1, 16):
            self.choices.pop(SeqId(request.id, choice), None)
        self.take(deltas)

    def abort(self, request_id: str) -> None:
        """Abort a request."""
        self.take(self.engine.abort(request_id))

    def abort_choice(self, id: str, choice: int) -> list[Delta]:
        """Abort one choice of a request."""
        deltas = self.engine.abort_choice(SeqId(id, choice))
        self.take(deltas)
        return deltas

    def step(self) -> list[Delta]:
        """One step, with the books checked after it."""
        deltas = self.engine.step()
        self.engine.check_integrity()
        self.take(deltas)
        return deltas

    def run(self, max_steps: int = 10_000) -> int:
        """Steps until nothing is left to do; the number of steps."""
        for num_steps in range(max_steps):
            if not self.engine.has_work:
                return num_steps
            self.step()
        raise AssertionError("the engine does not come to an end")

    def take(self, deltas: list[Delta]) -> None:
        """Add deltas to the outcomes."""
        for delta in deltas:
            outcome = self.choices.setdefault(delta.id, Outcome())
            assert outcome.finish is None, "something came after the end"
            outcome.tokens.extend(delta.tokens)
            outcome.finish, outcome.error = delta.finish, delta.error
            outcome.num_cached, outcome.num_preemptions = delta.num_cached, delta.num_preemptions
            outcome.events.extend(delta.events)
            outcome.score = delta.score
            outcome.logprobs.extend(delta.logprobs)
            outcome.prompt_logprobs.extend(delta.prompt_logprobs)

    def assert_empty(self) -> None:
        """Nothing runs, waits or holds a block, here and in the executor."""
        stats = self.engine.stats()
        assert not self.engine.has_work
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == self.pool.num_blocks
        assert not self.executor.known


_OF_REQUEST = ("output", "salt", "priority", "fair_key", "due", "num_choices", "beam")


def make_request(id="a", prompt=(1, 2, 3), *, max_tokens=4, output=(), **params) -> Request:
    """A request with the params that a test does not care about."""
    others = {name: params.pop(name) for name in _OF_REQUEST if name in params}
    params = SamplingParams(max_tokens=max_tokens, **params)
    return Request(id=id, prompt=tuple(prompt), output=tuple(output), params=params, **others)


def make_beams(id="a", prompt=(1, 2, 3), *, width=3, max_tokens=4, length_penalty=1.0, early_stopping=False, **params):
    """A request for a beam search."""
    beam = BeamParams(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
    return make_request(id, prompt, max_tokens=max_tokens, beam=beam, **params)
