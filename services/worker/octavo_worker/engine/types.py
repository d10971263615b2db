"""What goes into the engine and what comes out, as plain values. Knows no tensors, no text, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

RequestId = str
Token = int
BlockId = int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to continue."""

    id: RequestId
    prompt: tuple[Token, ...]
    # Tokens that an earlier attempt released. Known like the prompt, but they count as output.
    output: tuple[Token, ...] = ()
    params: SamplingParams
    # Cached blocks are shared only between equal salts.
    salt: str = ""
    # Larger runs first, where the queue policy looks at it.
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step (or an add or abort) changed for one sequence."""

    id: SeqId
    # New tokens, in order; none when only prompt was computed.
    tokens: tuple[Token, ...] = ()
    finish: FinishReason | None = None
    # Set with FinishReason.ERROR.
    error: str | None = None
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
    # Blocks that hold nothing.
    num_free_blocks: int = 0
    # Blocks that hold content that no sequence uses now.
    num_cached_blocks: int = 0
    num_used_blocks: int = 0


class AdmissionError(ValueError):
    """The request can never run here as it is. ``code`` is stable; ``limit`` is the number of tokens it met."""

    def __init__(self, message: str, *, code: str, num_tokens: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.num_tokens = num_tokens
        self.limit = limit
