"""Decides what a token stream does after every event and failure. Pure: no channel, no clock, no threads.

A driver opens what ``start`` and ``on_failure`` tell it to, and hands over what it reads::

    start() -> Open --> on_event(event) -> Chunk | None ... finished
                 ^              | broken
                 +--- on_failure(error) -> Open, or raises: the error is the answer

Before `accepted` a broken call is sent again under its idempotency key; after it, the stream goes on by job id from the
first token that the caller lacks. A token is delivered once and in order, or the stream ends with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo import calls, parsing
from octavo.calls import Call
from octavo.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OctavoError,
)
from octavo.received import Received
from octavo.retry import Patience, RetryPolicy, is_broken
from octavo.v1 import gateway_pb2
from octavo.values import Chunk, GenerationResult, JobHandle

# The platform fails a job at its deadline and says so; the call waits that much longer to hear it.
DEADLINE_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Open this call after a delay, at the next address if ``move``."""

    call: Call[gateway_pb2.GenerationEvent]
    delay_s: float
    move: bool


class StreamMachine:
    """The state of one stream: what has been received, and how to get the rest."""

    def __init__(
        self,
        request: gateway_pb2.Generation | None,
        *,
        policy: RetryPolicy,
        resumable: bool,
        job_id: str = "",
        token_ids: Sequence[int] = (),
    ) -> None:
        """Raises NotFoundError or InvalidArgumentError when neither a request nor a job can be asked for."""
        if request is None and not job_id:
            raise NotFoundError("a job without an id cannot be attached to", code="JOB_NOT_FOUND", param="job_id")
        if set(map(type, token_ids)) - {int} or any(not 0 <= token < 2**31 for token in token_ids):
            raise InvalidArgumentError("token ids must be from 0 to 2147483647", param="token_ids")
        self._request = request
        self._resumable = resumable
        self._patience = Patience(policy)
        self._deadline_s: float | None = None
        # Of each answer; grows when the platform says how many there are.
        self._received = [Received(token_ids)]
        self.job_id = job_id
        self.model = ""
        self.num_prompt_tokens = 0
        self.result: GenerationResult | None = None
        self.opened = False
        # Since when nothing can be heard of the stream, on the driver's clock.
        self.lost_since_s: float | None = None
        # True when the platform has said how it ended, or cannot be asked any more.
        self.ended = False

    @property
    def text(self) -> str:
        """All text received so far."""
        return self._received[0].text

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the first answer received so far."""
        return self._received[0].token_ids

    @property
    def received(self) -> Sequence[Received]:
        """What there is of each answer."""
        return self._received

    def start(self, now_s: float) -> Open:
        """The first call."""
        self.opened = True
        if self._request is not None and self._request.HasField("timeout"):
            self._deadline_s = now_s + parsing.seconds(self._request.timeout) + DEADLINE_GRACE_S
        if self._request is None:
            self._patience.progress()
        return Open(call=self._call(), delay_s=0.0, move=False)

    def remaining_s(self, now_s: float) -> float | None:
        """Time that the call may take; None if it has no deadline."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - now_s)

    def on_event(self, event: gateway_pb2.GenerationEvent) -> Chunk | None:
        """Take an event in; returns what the caller gets of it. ``result`` is set by the last one.

        Raises UnavailableError when tokens are missing before it (hand it to ``on_failure``), and AbortedError when it
        contradicts what was received.
        """
        self.lost_since_s = None
        kind = event.WhichOneof("event")
        if kind == "accepted":
            self._on_accepted(event.accepted)
        elif kind == "tokens":
            return self._on_tokens(parsing.chunk(event.tokens))
        elif kind == "finished":
            self.ended = True
            self.result = self._result(event.finished)
        return None

    def _result(self, finished: gateway_pb2.Finished) -> GenerationResult:
        ends = [(parsing.finish_reason(end.finish_reason), parsing.score(end)) for end in finished.choices]
        ends = ends or [(parsing.finish_reason(finished.finish_reason), None)]
        self._expect(len(ends))
        choices = [received.choice(*end) for received, end in zip(self._received, ends, strict=False)]
        return parsing.result_of(choices, parsing.usage(finished.usage), self._received[0].prompt_logprobs)

    def _expect(self, num_choices: int) -> None:
        while len(self._received) < num_choices:
            self._received.append(Received())

    def _on_accepted(self, accepted: gateway_pb2.Accepted) -> None:
        if self.job_id and accepted.job_id != self.job_id:
            raise AbortedError(f"the stream went on as another job, {accepted.job_id}", job_id=self.job_id)
        if not self.job_id:
            self.job_id = accepted.job_id
            self._patience.progress()
        self.model = accepted.model or self.model
        self.num_prompt_tokens = accepted.num_prompt_tokens or self.num_prompt_tokens
        self._expect(accepted.num_choices)

    def _on_tokens(self, chunk: Chunk) -> Chunk | None:
        self._expect(chunk.choice + 1)
        echo = self._request is not None and self._request.echo
        try:
            is_new = self._received[chunk.choice].take(chunk, echo=echo)
        except OctavoError as error:
            error.job_id = self.job_id
            raise
        if not is_new:
            return None
        self._patience.progress()
        return chunk

    def on_failure(self, error: OctavoError, *, now_s: float, jitter: float) -> Open:
        """What to open after a failure or an early end; raises the error when it is final."""
        error.job_id = error.job_id or self.job_id
        self.ended = True
        if self.lost_since_s is None:
            self.lost_since_s = now_s
        if not is_broken(error) or not self._may_reopen():
            raise error
        remaining_s = self.remaining_s(now_s)
        if remaining_s is not None and remaining_s <= 0:
            raise DeadlineExceededError("the deadline passed in a broken stream", job_id=self.job_id) from error
        delay_s = self._patience.delay_s(error, now_s=now_s, jitter=jitter)
        self.ended = False
        return Open(call=self._call(), delay_s=max(delay_s, error.retry_after_s or 0.0), move=True)

    def _may_reopen(self) -> bool:
        if self.job_id:
            return self._resumable
        return self._request is not None and bool(self._request.idempotency_key)

    def _call(self) -> Call[gateway_pb2.GenerationEvent]:
        if self.job_id:
            others = [received.token_ids for received in self._received[1:]]
            return calls.resume(self.job_id, self.token_ids, others=others, detach=self._resumable)
        assert self._request is not None
        return calls.generate(self._request)

    def find_job(self) -> Call[JobHandle] | None:
        """For a stream that is given up before `accepted`: the call that names its job, or None.

        The request may or may not have been accepted; submitting it again under its key tells, and its job can be
        cancelled then.
        """
        if self.job_id or not self.opened or self._request is None or not self._request.idempotency_key:
            return None
        return calls.submit(self._request)


class StreamView:
    """What a caller can see of its stream, of either kind."""

    def __init__(self, machine: StreamMachine) -> None:
        self._machine = machine
        self._closed = False
        self._cancelled = False

    @property
    def job_id(self) -> str:
        """The job's id; empty until the platform has accepted it."""
        return self._machine.job_id

    @property
    def model(self) -> str:
        """Full name of the model that serves it; empty until accepted."""
        return self._machine.model

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt after templating; 0 until accepted."""
        return self._machine.num_prompt_tokens

    @property
    def text(self) -> str:
        """All text of the first answer received so far."""
        return self._machine.text

    @property
    def texts(self) -> tuple[str, ...]:
        """All text received so far, of each answer."""
        return tuple(received.text for received in self._machine.received)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All token ids of the first answer received so far."""
        return tuple(self._machine.token_ids)

    @property
    def result(self) -> GenerationResult | None:
        """The result with its usage; None until the stream has ended well."""
        return self._machine.result

    @property
    def lost_since_s(self) -> float | None:
        """When the contact with the platform was lost, in seconds of ``time.monotonic``; None while there is contact.

        May be read from another thread than the reader's, to tell somebody why a stream pauses.
        """
        return self._machine.lost_since_s

    @property
    def cancelled(self) -> bool:
        """True after ``cancel`` or after the stream was left early."""
        return self._cancelled
