"""What a generation job asks for and what it brings back, as stored in the row. Pure values with a JSON form.

Results are in ``results``; their names are here, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from octavo_common.jobs.results import ChoiceResult, FinishReason, GenerationResult, TokenLogprob, UsageRecord

__all__ = [
    "ChoiceResult",
    "FinishReason",
    "GenerationResult",
    "GenerationSpec",
    "JobFailure",
    "ModelCard",
    "TokenLogprob",
    "UsageRecord",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """The part of a generation that the worker needs beside prompt ids and stream position (column `payload`)."""

    # 0 is greedy.
    temperature: float
    # 0 keeps all.
    top_k: int
    top_p: float
    # Always set: drawn at acceptance when the caller gave none. Any int64.
    seed: int
    # Already cut to what the context leaves.
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    # 0 keeps all.
    min_p: float = 0.0
    # 1 changes nothing; these count the prompt's tokens (repetition) and the answer's.
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # In rising order of ids.
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Sequences of tokens that the answer must not contain.
    bad_words: tuple[tuple[int, ...], ...] = ()
    # Empty allows all.
    allowed_token_ids: tuple[int, ...] = ()
    # At most max_tokens.
    min_tokens: int = 0
    # The answer keeps the stop string that ended it.
    include_stop: bool = False
    # The answer's text begins with the prompt's.
    echo: bool = False
    # What the answer must follow: one of the kinds json_schema, json_object, regex, choice and ebnf, and its text.
    grammar: tuple[str, str] | None = None
    # How many of the likeliest tokens are told beside each token's own log-probability; None tells nothing.
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False
    # Answers that are returned.
    n: int = 1
    # Answers that are generated; the n with the best mean log-probability are returned. At least n.
    best_of: int = 1
    # 0 samples; else the width of a beam search, at least n.
    beam_width: int = 0
    length_penalty: float = 1.0
    # True, False, or None for Hugging Face's "never".
    early_stopping: bool | None = False
    # chat or text_completion. The answer to a raw prompt continues its text, that to a chat opens one.
    operation: str = "text_completion"

    @property
    def is_ranked(self) -> bool:
        """Which answers are returned is known at the end only: nothing is streamed before."""
        return self.beam_width > 0 or self.best_of > self.n

    @property
    def restarts(self) -> bool:
        """After the loss of its worker it begins anew from its prompt: what was sent is of several sequences."""
        return self.n > 1 or self.is_ranked

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GenerationSpec:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        known = {k: v for k, v in value.items() if k in cls.__slots__}
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            known[name] = tuple(known.get(name, ()))
        grammar = known.get("grammar")
        known["grammar"] = None if grammar is None else tuple(grammar)
        known["logit_bias"] = tuple((int(token), float(bias)) for token, bias in known.get("logit_bias", ()))
        known["bad_words"] = tuple(tuple(word) for word in known.get("bad_words", ()))
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """Why a job failed (column `error`): the fields of an OctavoError."""

    code: str
    message: str
    hint: str = ""
    # Name of an errors.Status.
    status: str = "INTERNAL"
    # Name of the request's field at fault, if it is one's.
    param: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> JobFailure:
        """Inverse of to_json."""
        return cls(**{k: v for k, v in value.items() if k in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a worker says about the model it serves (column `processes.card`)."""

    # Name under which it is asked for, for example smollm2-135m.
    name: str
    # sha256 in hex of the weights' files.
    digest: str
    family: str
    numerics_id: str
    # Digest of the tokenizer bundle in `artifacts`.
    tokenizer_digest: str
    # min(context, blocks * block_size - lookahead): the longest prompt plus output.
    max_sequence_tokens: int
    context_length: int
    block_size: int
    num_blocks: int
    vocab_size: int
    # What planning needs (plan.shape.ModelShape), as JSON; None where the worker could not say.
    shape: dict[str, Any] | None = None
    # The same request gives the same tokens bit by bit, whatever runs beside it.
    exact: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelCard:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        return cls(**{k: v for k, v in value.items() if k in cls.__slots__})
