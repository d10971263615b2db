"""The fields that both kinds of generation have, and how they are said to the gateway."""

from __future__ import annotations

from typing import Any, Literal

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.formats import KINDS, Given, ResponseFormat, StructuredOutputs
from octavo_gateway.openai.parts import Body, Flag, OptionalText, StreamOptions
from octavo_gateway.requests import Beam, OnDisconnect, RawRequest, RequestLimits


def false_is_none(value: Any) -> Any:
    """False says the same as nothing."""
    return None if value is False else value


class GenerationBody(Body):
    """What both kinds of generation have in common."""

    model: OptionalText = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: Flag = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # By token id, as text: JSON has no other keys.
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    include_stop_str_in_output: Flag = False
    n: int | None = None
    best_of: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] | None = None
    # As vLLM had them: best_of, or else n, is the width, and n of the beams are returned.
    use_beam_search: Flag = False
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    # What the answer must follow, by OpenAI's name, vLLM's, and its older ones.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    stream: Flag = False
    stream_options: StreamOptions | None = None
    # Beyond OpenAI's API, as in octavo.v1.
    priority: int | None = None
    timeout_s: float | None = None
    on_disconnect: Literal["cancel", "detach"] | None = None
    fair_key: OptionalText = ""
    cache_salt: OptionalText = ""

    def raw_requests(self, idempotency_key: str, bounds: RequestLimits) -> list[RawRequest]:
        """The requests in the gateway's terms, one for each prompt."""
        raise NotImplementedError

    @property
    def names(self) -> dict[str, str]:
        """What stands in the body, by the name that the gateway's checks have for it. Raises nothing."""
        return {
            "include_stop": "include_stop_str_in_output",
            "beam_width": "n" if self.best_of is None else "best_of",
            "structured_output": self._structured_name(),
            "timeout": "timeout_s",
            "idempotency_key": "Idempotency-Key",
        }

    def common(self, idempotency_key: str) -> dict[str, Any]:
        """Fields of a RawRequest that do not depend on the kind."""
        stop = self.stop if self.stop is not None else ()
        return {
            "model": self.model,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "ignore_eos": self.ignore_eos,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": _by_token(self.logit_bias or {}),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "bad_words": tuple(self.bad_words or ()),
            "allowed_token_ids": tuple(self.allowed_token_ids or ()),
            "min_tokens": self.min_tokens or 0,
            "include_stop": self.include_stop_str_in_output,
            "logprobs": self.num_logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "logprobs_mode": self.logprobs_mode or "raw",
            **self._answers(),
            "structured": self._given(),
            "priority": self.priority or 0,
            "timeout_s": self.timeout_s,
            "on_disconnect": OnDisconnect(self.on_disconnect or "cancel"),
            "fair_key": self.fair_key,
            "cache_salt": self.cache_salt,
            "idempotency_key": idempotency_key,
        }

    def _answers(self) -> dict[str, Any]:
        """How many, and how they are found."""
        n = 1 if self.n is None else self.n
        if not self.use_beam_search:
            for name, neutral in (("length_penalty", (None, 1)), ("early_stopping", (None, False))):
                if getattr(self, name) not in neutral:
                    raise BadRequest(
                        f"{name} is taken only together with use_beam_search", code="INVALID_ARGUMENT", param=name
                    )
            return {"n": n, "best_of": self.best_of}
        return {
            "n": n,
            "beam": Beam(
                width=n if self.best_of is None else self.best_of,
                length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
                early_stopping=None if self.early_stopping == "never" else bool(self.early_stopping),
            ),
        }

    def _structured_name(self) -> str:
        """The last of the fields that say what the answer must follow."""
        fields = self.response_format.fields if self.response_format is not None else []
        fields += self.structured_outputs.fields if self.structured_outputs is not None else []
        fields += [f"guided_{name}" for name in self._older()]
        return fields[-1] if fields else "structured_outputs"

    def _given(self) -> list[Given]:
        """Kinds, and what is said of them. Raises BadRequest."""
        given = self.response_format.given() if self.response_format is not None else []
        given += self.structured_outputs.given() if self.structured_outputs is not None else []
        return given + [(KINDS[name], value) for name, value in self._older().items()]

    def _older(self) -> dict[str, Any]:
        """What stands in vLLM's older fields."""
        older = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        return {name: value for name, value in older.items() if value is not None}

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told beside each one; None tells nothing."""
        raise NotImplementedError

    @property
    def tells(self) -> bool:
        """Whether anything is told of tokens."""
        return self.num_logprobs is not None or self.prompt_logprobs is not None


def _by_token(biases: dict[str, float]) -> dict[int, float]:
    """Biases by token id."""
    wrong = next((key for key in biases if not (key.isascii() and key.isdigit() and len(key) < 11)), None)
    if wrong is not None:
        raise BadRequest(f"logit_bias: {wrong[:64]!r} is no token id", code="INVALID_ARGUMENT", param="logit_bias")
    return {int(key): bias for key, bias in biases.items()}
