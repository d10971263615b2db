"""What callers ask for: as they wrote it, and as a valid request. Plain values; `validation` makes one of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

Operation = Literal["chat", "text_completion"]


class OnDisconnect(Enum):
    """What happens to a job when the client of its stream goes away."""

    CANCEL = "cancel"
    DETACH = "detach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """Text to be continued as it is."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation to be put through the model's chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids to be continued as they are."""

    ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Bounds on the size of a request. Not the model's: those stand on its card."""

    max_prompt_chars: int = 1_000_000
    # In one request; their characters (or ids) count together.
    max_prompts: int = 128
    max_messages: int = 4096
    max_stop: int = 16
    max_stop_chars: int = 256
    max_stop_tokens: int = 256
    max_biased_tokens: int = 1024
    max_bad_words: int = 128
    max_bad_word_chars: int = 256
    max_allowed_tokens: int = 16384
    max_choices: int = 16
    max_logprobs: int = 20
    max_grammar_chars: int = 65536
    max_text_choices: int = 1024
    max_name_chars: int = 255
    max_priority: int = 100
    max_timeout_s: float = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """How a beam search goes."""

    width: int
    length_penalty: float = 1.0
    # True, False, or None for Hugging Face's "never".
    early_stopping: bool | None = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """What a caller wrote, unchecked. None means: not given. Exactly one of prompt, messages and token_ids."""

    model: str = ""
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # By token id.
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    include_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = "raw"
    n: int = 1
    best_of: int | None = None
    beam: Beam | None = None
    # Kinds of structured output with what was said of each; more than one is refused.
    structured: Sequence[tuple[str, Any]] = ()
    priority: int = 0
    timeout_s: float | None = None
    idempotency_key: str = ""
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    fair_key: str = ""
    cache_salt: str = ""
    echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What changes which tokens may come, beyond temperature and the usual filters. The names are GenerationSpec's."""

    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # In rising order of ids.
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Texts; the model's tokenizer makes sequences of tokens of them.
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How many answers, how they are found, and what is told of their tokens. The names are GenerationSpec's."""

    n: int = 1
    best_of: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | None = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidRequest:
    """A request that some model of sufficient context and vocabulary can serve."""

    # Empty: the only model there is.
    model: str
    prompt: Prompt
    temperature: float
    top_k: int
    top_p: float
    # None: drawn at acceptance.
    seed: int | None
    # None: what the context leaves.
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    steering: Steering
    include_stop: bool
    answers: Answers
    # (kind, text) as in GenerationSpec.
    grammar: tuple[str, str] | None
    priority: int
    timeout_s: float | None
    idempotency_key: str | None
    on_disconnect: OnDisconnect
    # None: the tenant.
    fair_key: str | None
    cache_salt: str
    echo: bool

    @property
    def operation(self) -> Operation:
        """The GenAI name of what is asked for."""
        return "chat" if isinstance(self.prompt, ChatPrompt) else "text_completion"
