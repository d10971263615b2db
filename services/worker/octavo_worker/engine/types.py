"""What goes into the engine and what comes out, as plain values. Knows no tensors, no text, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

RequestId = str
Token = int
BlockId = int
HostSlot = int


class SeqId(NamedTuple):
    """One sequence: a request may have several choices."""

    request: RequestId
    choice: int


class FinishReason(Enum):
    """Why a sequence ended."""

    # A stop token (end of sequence included).
    STOP = "stop"
    # max_tokens, or the longest sequence that the pool or the model takes.
    LENGTH = "length"
    # The caller asked for it.
    ABORTED = "aborted"
    # The executor failed on this row; Delta.error says how.
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a sequence ends."""

    # 0 is greedy.
    temperature: float = 0.0
    # 0 keeps all.
    top_k: int = 0
    top_p: float = 1.0
    # Keys the counter-based noise; any int64.
    seed: int = 0
    # Counts the whole output, that of earlier attempts included. 0 generates nothing.
    max_tokens: int
    # The model's own end-of-sequence ids are among them unless the caller wants them ignored.
    stop_token_ids: frozenset[Token] = frozenset()
    # Until so many tokens are out no stop token can be chosen, nor can a grammar end.
    min_tokens: int = 0
    # Drops tokens whose probability is below this part of the best one's; 0 keeps all.
    min_p: float = 0.0
    # Divides (multiplies, where negative) the logits of tokens that occur in prompt or output; 1 changes nothing.
    repetition_penalty: float = 1.0
    # Taken from the logits of tokens that occur in the output: once, and once for each occurrence.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # Added to the logits of single tokens, in rising order of ids.
    logit_bias: tuple[tuple[Token, float], ...] = ()
    # Sequences of tokens that the output must not contain.
    bad_words: tuple[tuple[Token, ...], ...] = ()
    # The only tokens that may be chosen; empty allows all.
    allowed_token_ids: frozenset[Token] = frozenset()
    # Names a grammar that the executor's side has compiled; empty constrains nothing.
    grammar: str = ""
    # How many of the best alternatives are told beside the chosen token's own; None tells no log-probabilities.
    num_logprobs: int | None = None
    # The same for the prompt's tokens. Such a request takes no prefix hits.
    num_prompt_logprobs: int | None = None
    # Log-probabilities after penalties, masks, temperature and filters instead of the model's own.
    processed_logprobs: bool = False

    @property
    def needs_history(self) -> bool:
        """Whether a token's choice depends on tokens before it other than through the model."""
        has_penalty = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return has_penalty or bool(self.bad_words) or bool(self.grammar)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """Beam search: the ``width`` best sequences by sum of log-probabilities / (generated tokens ** length_penalty)."""

    width: int
    length_penalty: float = 1.0
    # True ends with ``width`` finished sequences; False goes on while a running one could still win by the usual
    # estimate; None (Hugging Face's "never") until none can win at all.
    early_stopping: bool | None = False


class TokenLogprobs(NamedTuple):
    """What is told of one token beside its id."""

    logprob: float
    # 1 is the most likely token.
    rank: int
    # The most likely tokens and theirs, falling.
    top: tuple[tuple[Token, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue, by one sequence or several."""

    id: RequestId
    prompt: tuple[Token, ...]
    # Tokens that an earlier attempt released. Known like the prompt, but they count as output.
    output: tuple[Token, ...] = ()
    params: SamplingParams
    # Cached blocks are shared only between equal salts.
    salt: str = ""
    # Larger runs first, where the queue policy looks at it.
    priority: int = 0
    # Requests of one key share fairly with those of other keys.
    fair_key: str = ""
    # When it should be done, on any scale that all requests share; only compared. None is never.
    due: float | None = None
    # Independent continuations, choices 0, 1, ...; they share the prompt's blocks. Only 1 goes with ``output``.
    num_choices: int = 1
    # Set for a beam search; sampling then only says when sequences end and which tokens are allowed.
    beam: BeamParams | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step (or an add or abort) changed for one sequence."""

    id: SeqId
    # New tokens, in order; none when only prompt was computed. A beam's come all with its finish.
    tokens: tuple[Token, ...] = ()
    # One a token when the request wants them.
    logprobs: tuple[TokenLogprobs, ...] = ()
    # Of the prompt's tokens from the second on, as far as this step computed them.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    # Of a beam that has finished: its sum of log-probabilities, with the length penalty.
    score: float | None = None
    finish: FinishReason | None = None
    # Set with FinishReason.ERROR.
    error: str | None = None
    # Set with it when the request was refused, or cannot go on by its own rules: what its caller is to be told.
    refusal: str = ""
    # Prompt tokens whose KV was found in the prefix cache when the sequence was first admitted.
    num_cached: int = 0
    # So far.
    num_preemptions: int = 0
    # Known tokens computed in this step before any new one: a chunk of the prompt, or of a recomputation.
    num_prompt_tokens: int = 0
    # In order: "scheduled" (first step), "resumed" (after a preemption), "first_token", "preempted".
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step and one sequence may take."""

    max_batch_tokens: int = 512
    # Most rows in a step.
    max_sequences: int = 64
    # Prompt tokens of a step while anything decodes; bounds the gap between two tokens of a stream.
    max_prompt_tokens_beside_decode: int = 64
    # Most known tokens that one row feeds in a step; None is no limit of its own.
    max_chunk_tokens: int | None = None
    # Prompt plus output: min(context, blocks * block_size - lookahead).
    max_sequence_tokens: int

    def __post_init__(self) -> None:
        if self.max_sequences < 1 or self.max_prompt_tokens_beside_decode < 1 or self.max_sequence_tokens < 2:
            raise ValueError(f"limits must leave room for one sequence of two tokens: {self}")
        if self.max_chunk_tokens is not None and self.max_chunk_tokens < 1:
            raise ValueError("max_chunk_tokens must be at least 1")
        if self.max_batch_tokens < self.max_sequences:
            # Else a row could be left out of every step and starve.
            raise ValueError("max_batch_tokens must be at least max_sequences: each row needs a token in each step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What the last step did, and how the pool stands after it."""

    step: int = 0
    # Rows' tokens that only decode, their drafts included.
    num_decode_tokens: int = 0
    num_prompt_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    # Preempted by this step.
    num_preempted: int = 0
    num_rows: int = 0
    # Of the preempted, those that went to host memory; the others are computed again.
    num_swapped: int = 0
    # Of sequences that began in this step: tokens that could have been in the prefix cache, and those that were.
    num_asked_tokens: int = 0
    num_found_tokens: int = 0
    # Blocks that hold nothing.
    num_free_blocks: int = 0
    # Blocks that hold content that no sequence uses now.
    num_cached_blocks: int = 0
    num_used_blocks: int = 0


class RuleFault(str):
    """Why a request cannot go on, where its own rules are to blame: an error of its caller, which ``code`` names."""

    __slots__ = ("code",)

    code: str

    def __new__(cls, text: str, *, code: str) -> RuleFault:
        """``code`` is stable."""
        fault = super().__new__(cls, text)
        fault.code = code
        return fault


class RuleBroken(Exception):
    """The same, raised."""

    code: str


NO_TOKEN_ALLOWED = "NO_TOKEN_ALLOWED"


class AdmissionError(ValueError):
    """The request can never run here as it is. ``code`` is stable; ``limit`` is the number of tokens it met."""

    def __init__(self, message: str, *, code: str, num_tokens: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.num_tokens = num_tokens
        self.limit = limit
