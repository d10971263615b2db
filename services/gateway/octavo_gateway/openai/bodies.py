"""Request bodies of the OpenAI API as pydantic models, and how they become a RawRequest.

What would change the answer and cannot be done is refused; what cannot change it is ignored and named to the caller.
Values are checked for their types only: their ranges are `validation`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.parts import Body, ChatMessageBody, Flag, OptionalText, StreamOptions, TextPart
from octavo_gateway.openai.support import refuse_unknown_options, refuse_unsupported
from octavo_gateway.requests import Beam, Message, OnDisconnect, RawRequest

# The legacy endpoint's own default; chats may take what the context leaves.
DEFAULT_COMPLETION_TOKENS = 16


def _false_is_none(value: Any) -> Any:
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
    stream: Flag = False
    stream_options: StreamOptions | None = None
    # Beyond OpenAI's API, as in octavo.v1.
    priority: int | None = None
    timeout_s: float | None = None
    on_disconnect: Literal["cancel", "detach"] | None = None
    fair_key: OptionalText = ""
    cache_salt: OptionalText = ""

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

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told beside each one; None tells nothing."""
        raise NotImplementedError

    @property
    def tells(self) -> bool:
        """Whether anything is told of tokens."""
        return self.num_logprobs is not None or self.prompt_logprobs is not None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[ChatMessageBody]
    max_completion_tokens: int | None = None
    logprobs: Flag = False
    top_logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        """None without `logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def raw_request(self, idempotency_key: str) -> RawRequest:
        """The request in the gateway's terms."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.max_tokens is not None and self.max_tokens != max_tokens:
            raise BadRequest(
                "max_tokens and max_completion_tokens differ", code="INVALID_ARGUMENT", param="max_completion_tokens"
            )
        if self.top_logprobs and not self.logprobs:
            raise BadRequest(
                "top_logprobs is taken only together with logprobs", code="INVALID_ARGUMENT", param="top_logprobs"
            )
        messages = [_message(m, f"messages[{n}]") for n, m in enumerate(self.messages)]
        return RawRequest(messages=messages, max_tokens=max_tokens, **self.common(idempotency_key))


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    echo: Flag = False
    # A number; false is what other servers take for none.
    logprobs: Annotated[int | None, BeforeValidator(_false_is_none)] = None

    @property
    def num_logprobs(self) -> int | None:
        """As it stands there."""
        return self.logprobs

    def raw_request(self, idempotency_key: str) -> RawRequest:
        """The request in the gateway's terms."""
        max_tokens = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        prompt = self._only_prompt()
        given = {"prompt": prompt} if isinstance(prompt, str) else {"token_ids": prompt}
        fields = self.common(idempotency_key)
        if self.echo and self.logprobs is not None:
            # The prompt's tokens are told like the others.
            fields["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return RawRequest(echo=self.echo, max_tokens=max_tokens, **given, **fields)

    def _only_prompt(self) -> str | list[int]:
        """The prompt; a list of one is that one."""
        prompt = self.prompt
        if prompt is None:
            raise BadRequest("the request has no prompt", code="EMPTY_PROMPT", param="prompt")
        if isinstance(prompt, str):
            return prompt
        if prompt and isinstance(prompt[0], int):
            return [token for token in prompt if isinstance(token, int)]
        if len(prompt) == 1 and not isinstance(prompt[0], int):
            return prompt[0]
        if not prompt:
            return []
        raise BadRequest(
            f"one prompt is taken in a request, and there are {len(prompt)}",
            code="UNSUPPORTED_PARAMETER",
            param="prompt",
            hint="send a request for each prompt: they are batched together anyway",
        )


BodyT = TypeVar("BodyT", bound=GenerationBody)


def parse_chat(value: Any) -> tuple[ChatBody, tuple[str, ...]]:
    """The body, and the names of what is ignored in it. Raises BadRequest."""
    body = _parse(ChatBody, value)
    ignored = refuse_unsupported(body.model_extra or {})
    extras = {f"messages.{name}" for message in body.messages for name in _extras(message)}
    for message in body.messages:
        parts = message.content if isinstance(message.content, list) else ()
        extras |= {f"messages.content.{name}" for part in parts for name in _extras(part)}
    return body, (*ignored, *sorted(extras), *_ignored_options(body))


def parse_completion(value: Any) -> tuple[CompletionBody, tuple[str, ...]]:
    """The body, and the names of what is ignored in it. Raises BadRequest."""
    body = _parse(CompletionBody, value)
    return body, (*refuse_unsupported(body.model_extra or {}), *_ignored_options(body))


def _by_token(biases: dict[str, float]) -> dict[int, float]:
    """Biases by token id."""
    wrong = next((key for key in biases if not (key.isascii() and key.isdigit() and len(key) < 11)), None)
    if wrong is not None:
        raise BadRequest(f"logit_bias: {wrong[:64]!r} is no token id", code="INVALID_ARGUMENT", param="logit_bias")
    return {int(key): bias for key, bias in biases.items()}


def _extras(model: Body) -> list[str]:
    return [name for name, value in (model.model_extra or {}).items() if value is not None]


def _ignored_options(body: GenerationBody) -> tuple[str, ...]:
    options = body.stream_options
    if options is None:
        return ()
    if not body.stream:
        raise BadRequest(
            "stream_options is allowed only together with stream", code="INVALID_ARGUMENT", param="stream_options"
        )
    return refuse_unknown_options(options.model_extra or {})


def _message(body: ChatMessageBody, param: str) -> Message:
    for name in ("tool_calls", "function_call", "tool_call_id"):
        if (body.model_extra or {}).get(name):
            raise BadRequest(
                "tools are not supported in this release", code="UNSUPPORTED_PARAMETER", param=f"{param}.{name}"
            )
    content = body.content
    if content is None:
        raise BadRequest("the message has no content", code="INVALID_ARGUMENT", param=f"{param}.content")
    if not isinstance(content, str):
        content = "\n".join(_part_text(part, f"{param}.content[{n}]") for n, part in enumerate(content))
    # OpenAI's newer name for the same; chat templates know the old one.
    role = "system" if body.role == "developer" else body.role
    return Message(role=role, content=content)


def _part_text(part: TextPart, param: str) -> str:
    if part.type != "text":
        raise BadRequest(
            f"content of type {part.type[:64]!r} is not supported", code="UNSUPPORTED_PARAMETER", param=f"{param}.type"
        )
    if part.text is None:
        raise BadRequest("the part has no text", code="INVALID_ARGUMENT", param=f"{param}.text")
    return part.text


def _parse(kind: type[BodyT], value: Any) -> BodyT:
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object", code="INVALID_ARGUMENT")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _param(kind, first["loc"])
        raise BadRequest(f"{param or 'the body'}: {first['msg']}", code="INVALID_ARGUMENT", param=param) from error


def _param(kind: type[BaseModel], loc: tuple[int | str, ...]) -> str | None:
    """The field's path, without the alternatives of a union that pydantic names in it."""
    names = set(kind.model_fields) | set(ChatMessageBody.model_fields) | set(TextPart.model_fields)
    names |= set(StreamOptions.model_fields)
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in names:
            path += f".{part}" if path else part
    return path or None
