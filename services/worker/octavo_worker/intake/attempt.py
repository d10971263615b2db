"""One job under one fence at this worker: its tokens, its text, its times. Decides nothing and waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_common.jobs.model import Claimed, Held, Job
from octavo_common.jobs.spec import ChoiceResult, GenerationResult, GenerationSpec, TokenLogprob, UsageRecord
from octavo_common.text.answers import answer_stream, lead_text
from octavo_common.text.stream import Released, TextStream
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Delta, Request, TokenLogprobs
from octavo_worker.engine.types import FinishReason as EngineReason
from octavo_worker.intake.asking import engine_request, needs_logprobs, num_computed
from octavo_worker.intake.choice import Choice, told, with_offsets
from octavo_worker.intake.trace import JobTrace
from octavo_worker.joblog import JobLog


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """What the intake keeps of a claimed job until the table knows its end."""

    claimed: Claimed
    spec: GenerationSpec
    log: JobLog
    # All that the engine computes; of ranked ones the best go into the log at the end.
    choices: tuple[Choice, ...]
    tokenizer: Tokenizer
    trace: JobTrace
    # Monotonic time of the claim; acceptance was claimed.age_s before.
    claimed_s: float
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    # Its end is on the way to the table: nothing from the engine counts any more.
    ending: bool = False
    num_cached: int = 0
    num_preemptions: int = 0
    first_step_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    deadline: asyncio.Task[None] | None = None
    # Until the engine has it.
    preparing: asyncio.Task[None] | None = None
    # Was lost without progress, and has made some here.
    cleared: bool = False

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
        return Held(self.job.id, self.job.fence, self.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers that are certain."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def emitted_ids(self) -> Sequence[int]:
        """What the next attempt may go on from."""
        return () if self.spec.restarts else self.log.ids

    @property
    def is_over(self) -> bool:
        """Every answer has ended."""
        return all(choice.reason is not None for choice in self.choices)

    @property
    def is_computed(self) -> bool:
        """The engine has nothing more to do for it."""
        return all(choice.computed for choice in self.choices)

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
        if not self.job.emitted_ids or self.spec.restarts:
            return False
        choice = self.choices[0]
        # The prompt is scored again. A reader that has tokens already has what was told of it, too.
        self.log.awaits_prompt = self.spec.prompt_logprobs is not None and len(self.job.prompt_ids) > 1
        released = choice.replay(self.job.emitted_ids)
        self._release(0, released)
        if released.stopped:
            choice.reason = "stop"
        return released.stopped

    def push(self, delta: Delta, now: float) -> None:
        """Take an answer's new tokens; what became certain goes into the log at once. A stop string ends the answer."""
        if not self.spec.max_tokens:
            # It was computed for the prompt's sake.
            return
        choice = self.choices[delta.id.choice]
        if self.first_token_s is None:
            self.first_token_s = now
        self.last_token_s = now
        released = choice.push(delta.tokens, delta.logprobs)
        self._release(delta.id.choice, released)
        if released.stopped:
            choice.reason = "stop"

    def clears_itself(self) -> bool:
        """True once: when a job that was lost without progress has its first new token, and so kills nobody at once."""
        num_before = 0 if self.spec.restarts else len(self.job.emitted_ids)
        if self.cleared or not self.job.losses or self.num_tokens <= num_before:
            return False
        self.cleared = True
        return True

    def is_surplus(self, delta: Delta) -> bool:
        """It is of a beam that the caller does not want."""
        return delta.id.choice >= len(self.choices)

    def close_search(self) -> bool:
        """After the step in which a beam search ended: True if it found less than was asked for; the rest is empty."""
        if not self.spec.beam_width or not self.choices[0].computed:
            return False
        for choice in self.choices:
            choice.computed = True
            choice.reason = choice.reason or "length"
        return True

    def finish(self, delta: Delta) -> None:
        """The engine has ended an answer: the rest of its text becomes certain."""
        choice = self.choices[delta.id.choice]
        choice.computed = True
        choice.score = None if delta.score is None else round(delta.score, 6)
        if choice.reason is not None:
            return
        released = choice.stream.finish()
        self._release(delta.id.choice, released)
        stopped = released.stopped or (delta.finish is EngineReason.STOP and self.spec.max_tokens > 0)
        choice.reason = "stop" if stopped else "length"

    def note_prompt(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Keep what is told of the prompt's tokens; it goes out with the first token."""
        if not self.prompt_logprobs:
            # Nothing comes before the first.
            self.prompt_logprobs.append(TokenLogprob(None))
        self.prompt_logprobs += map(told, logprobs)
        if len(self.prompt_logprobs) == len(self.job.prompt_ids):
            self.log.tell_prompt(self._with_offsets())

    def publish(self) -> None:
        """Put ranked answers into the log, now that it is known which they are. Nothing for others."""
        if self.spec.is_ranked:
            for number, choice in enumerate(self._returned()):
                end = choice.num_tokens
                logprobs = choice.logprobs[:end] if self.spec.logprobs is not None else ()
                self.log.release(choice.ids[:end], choice.stream.texts, logprobs, choice=number)

    def request(self, eos_ids: Sequence[int], *, grammar: str = "") -> Request:
        """What the engine computes."""
        left_s = self.claimed.deadline_in_s
        return engine_request(
            self.job,
            self.spec,
            name=self.request_id,
            eos_ids=eos_ids,
            due=None if left_s is None else self.claimed_s + left_s,
            grammar=grammar,
        )

    def note(self, delta: Delta, began_s: float) -> None:
        """Keep what the usage says; the step of the delta began at began_s."""
        self.num_preemptions = max(self.num_preemptions, delta.num_preemptions)
        if "scheduled" in delta.events and self.first_step_s is None:
            self.num_cached = delta.num_cached
            self.first_step_s = began_s

    def result(self) -> GenerationResult:
        """The result, of released tokens only: after a stop string the later ones never were.

        Call it when all answers have ended. The stream knows the text better than the log where a stop string turns out
        to begin in a token that an earlier attempt let go: the log keeps what readers got, the result is cut.
        """
        first, *others = map(self._choice_result, self._returned())
        return GenerationResult(
            token_ids=first.token_ids,
            text=first.text,
            finish_reason=first.finish_reason,
            logprobs=first.logprobs,
            score=first.score,
            usage=self._usage(),
            prompt_logprobs=self.log.prompt_logprobs,
            others=tuple(others),
        )

    def _returned(self) -> Sequence[Choice]:
        """Those that the caller gets, best first where they are ranked."""
        if self.spec.beam_width:
            return self._beams()
        if not self.spec.is_ranked:
            return self.choices
        for choice in self.choices:
            choice.score = round(choice.mean_logprob, 6)
        return sorted(self.choices, key=lambda choice: -choice.mean_logprob)[: self.spec.n]

    def _beams(self) -> Sequence[Choice]:
        """The best of the search whose texts differ: what stop strings have cut to a better one's text is left out."""
        if not self.spec.stop:
            return self.choices
        by_text: dict[str, Choice] = {}
        for choice in self.choices:
            if choice.ids:
                by_text.setdefault(choice.stream.text, choice)
        found = list(by_text.values())[: self.spec.n]
        return found + [self._nothing() for _ in range(self.spec.n - len(found))]

    def _nothing(self) -> Choice:
        """What stands for an answer that the search has not found."""
        stream = answer_stream(self.tokenizer, self.spec, self.job.prompt_ids)
        return Choice(stream=stream, reason="length", computed=True)

    def _choice_result(self, choice: Choice) -> ChoiceResult:
        assert choice.reason is not None, "it has ended"
        num_tokens = choice.num_tokens
        logprobs: tuple[TokenLogprob, ...] = ()
        if self.spec.logprobs is not None:
            logprobs = with_offsets(choice.logprobs[:num_tokens], choice.stream.texts, len(self.log.lead_text))
        return ChoiceResult(
            token_ids=tuple(choice.ids[:num_tokens]),
            text=self.log.lead_text + choice.stream.text,
            finish_reason=choice.reason,
            logprobs=logprobs,
            score=choice.score,
        )

    def _with_offsets(self) -> tuple[TokenLogprob, ...]:
        stream = TextStream(self.tokenizer)
        stream.push(self.job.prompt_ids)
        stream.finish()
        return with_offsets(self.prompt_logprobs, stream.texts, 0)

    def _usage(self) -> UsageRecord:
        return UsageRecord(
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=sum(choice.num_tokens for choice in self._returned())
            if self.spec.beam_width
            else self.num_tokens,
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

    def _release(self, number: int, released: Released) -> None:
        if released.texts and not self.spec.is_ranked:
            choice = self.choices[number]
            ids, texts, logprobs = choice.tokens(len(self.log.ids_of(number)), released)
            self.log.release(ids, texts, logprobs, choice=number)


def new_attempt(
    claimed: Claimed, spec: GenerationSpec, *, tokenizer: Tokenizer, trace: JobTrace, now: float
) -> Attempt:
    """An attempt whose log is empty yet."""
    job = claimed.job
    return Attempt(
        claimed=claimed,
        spec=spec,
        log=JobLog(job.id, job.fence, lead_text=lead_text(tokenizer, spec, job.prompt_ids), num_choices=spec.n),
        choices=tuple(
            Choice(stream=answer_stream(tokenizer, spec, job.prompt_ids), telling=needs_logprobs(spec))
            for _ in range(num_computed(spec))
        ),
        tokenizer=tokenizer,
        trace=trace,
        claimed_s=now,
    )
