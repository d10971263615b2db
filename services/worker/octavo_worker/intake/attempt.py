"""One job under one fence at this worker: its tokens, its text, its times. Decides nothing and waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_common.jobs.model import Claimed, Held, Job
from octavo_common.jobs.spec import FinishReason, GenerationResult, GenerationSpec, UsageRecord
from octavo_common.text.answers import answer_stream, lead_text
from octavo_common.text.stream import Released, TextStream
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Delta, Request, SamplingParams
from octavo_worker.intake.trace import JobTrace
from octavo_worker.joblog import JobLog


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """What the intake keeps of a claimed job until the table knows its end."""

    claimed: Claimed
    spec: GenerationSpec
    log: JobLog
    stream: TextStream
    trace: JobTrace
    # Monotonic time of the claim; acceptance was claimed.age_s before.
    claimed_s: float
    # All tokens, those that are not certain yet among them.
    ids: list[int] = field(default_factory=list[int])
    # Its end is on the way to the table: nothing from the engine counts any more.
    ending: bool = False
    num_cached: int = 0
    num_preemptions: int = 0
    first_step_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    deadline: asyncio.Task[None] | None = None

    @property
    def job(self) -> Job:
        """The row as it was claimed."""
        return self.claimed.job

    @property
    def request_id(self) -> str:
        """Its name in the engine; an attempt of another fence has another one."""
        return f"{self.job.id}:{self.job.fence}"

    @property
    def held(self) -> Held:
        """What the heartbeat says of it."""
        return Held(self.job.id, self.job.fence, len(self.log.ids))

    @property
    def accepted_s(self) -> float:
        """Monotonic time of the job's acceptance."""
        return self.claimed_s - self.claimed.age_s

    # --- times of the job as its caller saw them, over all attempts, from acceptance; None: nobody knows

    @property
    def queue_s(self) -> float | None:
        """To the first step; when an earlier worker had begun it, to when that took it."""
        earlier_s = self.claimed.earlier_start_s
        return self._since_acceptance(self.first_step_s) if earlier_s is None else earlier_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """To the first token that was kept, whoever made it."""
        if self.job.emitted_ids:
            return self.claimed.earlier_token_s
        return self._since_acceptance(self.first_token_s)

    @property
    def total_s(self) -> float | None:
        """To the last token."""
        return self._since_acceptance(self.last_token_s)

    def replay(self) -> bool:
        """Put the tokens of earlier attempts at the start of the log. True when they hold a whole stop string."""
        released = self.stream.replay(self.job.emitted_ids)
        self.ids += self.job.emitted_ids
        self._release(released)
        return released.stopped

    def push(self, tokens: Sequence[int], now: float) -> bool:
        """Take new tokens; what became certain goes into the log at once. True when a stop string is complete."""
        if self.first_token_s is None:
            self.first_token_s = now
        self.last_token_s = now
        self.ids += tokens
        released = self.stream.push(tokens)
        self._release(released)
        return released.stopped

    def finish_text(self) -> bool:
        """No more tokens come: the rest becomes certain. True when it ends with a stop string after all."""
        released = self.stream.finish()
        self._release(released)
        return released.stopped

    def request(self, eos_ids: Sequence[int]) -> Request:
        """What the engine computes."""
        spec = self.spec
        stops = frozenset(spec.stop_token_ids) | (frozenset() if spec.ignore_eos else frozenset(eos_ids))
        return Request(
            id=self.request_id,
            prompt=self.job.prompt_ids,
            output=self.job.emitted_ids,
            params=SamplingParams(
                temperature=spec.temperature,
                top_k=spec.top_k,
                top_p=spec.top_p,
                seed=spec.seed,
                max_tokens=spec.max_tokens,
                stop_token_ids=stops,
                min_tokens=spec.min_tokens,
                min_p=spec.min_p,
                repetition_penalty=spec.repetition_penalty,
                presence_penalty=spec.presence_penalty,
                frequency_penalty=spec.frequency_penalty,
                logit_bias=spec.logit_bias,
                bad_words=spec.bad_words,
                allowed_token_ids=frozenset(spec.allowed_token_ids),
            ),
            salt=self.job.cache_salt,
            priority=self.job.priority,
        )

    def note(self, delta: Delta, began_s: float) -> None:
        """Keep what the usage says; the step of the delta began at began_s."""
        self.num_preemptions = delta.num_preemptions
        if "scheduled" in delta.events:
            self.num_cached = delta.num_cached
            self.first_step_s = began_s

    def result(self, reason: FinishReason) -> GenerationResult:
        """The result, of released tokens only: after a stop string the later ones never were.

        Call it when the text has ended. The stream knows it better than the log where a stop string turns out to begin
        in a token that an earlier attempt let go: the log keeps what readers got, the result is cut.
        """
        text = self.log.lead_text + self.stream.text
        return GenerationResult(token_ids=tuple(self.log.ids), text=text, finish_reason=reason, usage=self._usage())

    def _usage(self) -> UsageRecord:
        return UsageRecord(
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=len(self.log.ids),
            cached_tokens=self.num_cached,
            num_preemptions=self.num_preemptions,
            num_losses=self.job.total_losses,
            numerics_changed=self.job.numerics_changed,
            seed=self.spec.seed,
            queue_s=self.queue_s,
            time_to_first_token_s=self.time_to_first_token_s,
            total_s=self.total_s,
        )

    def _since_acceptance(self, at_s: float | None) -> float | None:
        return None if at_s is None else max(0.0, at_s - self.accepted_s)

    def _release(self, released: Released) -> None:
        first = len(self.log.ids)
        self.log.release(self.ids[first : first + released.num_released], released.texts)


def new_attempt(
    claimed: Claimed, spec: GenerationSpec, *, tokenizer: Tokenizer, trace: JobTrace, now: float
) -> Attempt:
    """An attempt whose log is empty yet."""
    job = claimed.job
    return Attempt(
        claimed=claimed,
        spec=spec,
        log=JobLog(job.id, job.fence, lead_text=lead_text(tokenizer, spec, job.prompt_ids)),
        stream=answer_stream(tokenizer, spec, job.prompt_ids),
        trace=trace,
        claimed_s=now,
    )
