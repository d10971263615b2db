"""Values that both rims of the gateway speak: an accepted job, the pieces of its stream, a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from octavo_common.jobs.spec import FinishReason, JobFailure, TokenLogprob, UsageRecord
from octavo_gateway.observe import Observation
from octavo_gateway.requests import OnDisconnect, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedJob:
    """A job that is committed to the table, and the place in its output from which its caller wants to read."""

    job_id: UUID
    # False when the idempotency key named a job that exists, or when a stream is resumed.
    created: bool
    # Full name of the model that serves it.
    model: str
    num_prompt_tokens: int
    # Empty where the caller only submits.
    prompt_ids: tuple[int, ...] = ()
    model_digest: str = ""
    # Answers that come.
    num_choices: int = 1
    create_time: datetime
    on_disconnect: OnDisconnect
    operation: Operation = "text_completion"
    # Names this reader to the stream hub; 0 for a job that is not streamed.
    reader: int = 0
    # The request's span and times.
    observation: Observation = field(default_factory=Observation, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """Tokens that became certain together, and their text. Text never splits a character."""

    # Index of the first token, counted from 0 at the start of the output.
    first_token: int
    token_ids: tuple[int, ...]
    text: str
    # Which of several answers they belong to.
    choice: int = 0
    # One a token when they were asked for.
    logprobs: tuple[TokenLogprob, ...] = ()
    # With the first piece of an answer, when they were asked for.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_empty(self) -> bool:
        """It says nothing."""
        return not (self.token_ids or self.text or self.prompt_logprobs)

    @classmethod
    def joined(cls, pieces: Sequence[TokenPiece]) -> TokenPiece:
        """One piece of some of one answer that follow each other."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            choice=pieces[0].choice,
            first_token=pieces[0].first_token,
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            text="".join(piece.text for piece in pieces),
            logprobs=tuple(told for piece in pieces for told in piece.logprobs),
            prompt_logprobs=pieces[0].prompt_logprobs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceEnd:
    """How one answer ended."""

    finish_reason: FinishReason
    # What ranked answers are in order of.
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job has succeeded. A job that failed or was cancelled raises an OctavoError from its stream instead."""

    # Of the first answer.
    finish_reason: FinishReason
    usage: UsageRecord
    # Of all, when there are several or they have scores.
    choices: tuple[ChoiceEnd, ...] = ()

    @property
    def ends(self) -> tuple[ChoiceEnd, ...]:
        """How each answer ended."""
        return self.choices or (ChoiceEnd(finish_reason=self.finish_reason),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended without a result: with a failure, or cancelled (None)."""

    failure: JobFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """One message of a worker's stream. The last one, and only it, has an end."""

    piece: TokenPiece
    end: Finish | Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can be asked for."""

    name: str
    digest: str
    family: str
    max_sequence_tokens: int
    numerics_ids: tuple[str, ...]
    # Live workers that serve it; 0 while its last one restarts.
    num_workers: int
    # When its oldest live worker started, as seconds since the epoch.
    created_s: float
