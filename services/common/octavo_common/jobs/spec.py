"""What a generation job asks for and what it brings back, as stored in the row. Pure values with a JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

FinishReason = Literal["stop", "length"]


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
    # chat or text_completion. The answer to a raw prompt continues its text, that to a chat opens one.
    operation: str = "text_completion"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GenerationSpec:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        known = {k: v for k, v in value.items() if k in cls.__slots__}
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            known[name] = tuple(known.get(name, ()))
        known["logit_bias"] = tuple((int(token), float(bias)) for token, bias in known.get("logit_bias", ()))
        known["bad_words"] = tuple(tuple(word) for word in known.get("bad_words", ()))
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What a generation used, whatever workers it lost. Times in seconds from acceptance; None: nobody knows."""

    prompt_tokens: int
    completion_tokens: int
    # These two are of the attempt that ended it.
    cached_tokens: int = 0
    num_preemptions: int = 0
    num_losses: int = 0
    numerics_changed: bool = False
    seed: int = 0
    # To the first step; when another worker had begun it, to when that took it.
    queue_s: float | None = None
    time_to_first_token_s: float | None = None
    # To the last token.
    total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What a generation brought (column `result`)."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    usage: UsageRecord

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "token_ids": list(self.token_ids)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GenerationResult:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        usage = {k: v for k, v in cast(dict[str, Any], value["usage"]).items() if k in UsageRecord.__slots__}
        return cls(
            token_ids=tuple(value["token_ids"]),
            text=value["text"],
            finish_reason=value["finish_reason"],
            usage=UsageRecord(**usage),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """Why a job failed (column `error`): the fields of an OctavoError."""

    code: str
    message: str
    hint: str = ""
    # Name of an errors.Status.
    status: str = "INTERNAL"

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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelCard:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        return cls(**{k: v for k, v in value.items() if k in cls.__slots__})
