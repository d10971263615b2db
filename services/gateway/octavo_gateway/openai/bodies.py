"""Request bodies of the OpenAI API as pydantic models, and how they become a RawRequest.

What would change the answer and cannot be done is refused; what cannot change it is ignored and named to the caller.
Values are checked for their types only: their ranges are `validation`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.generation import GenerationBody, false_is_none
from octavo_gateway.openai.parts import Body, ChatMessageBody, Flag, StreamOptions, TextPart
from octavo_gateway.openai.support import refuse_unknown_options, refuse_unsupported
from octavo_gateway.requests import Message, RawRequest

# The legacy endpoint's own default; chats may take what the context leaves.
DEFAULT_COMPLETION_TOKENS = 16


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
    logprobs: Annotated[int | None, BeforeValidator(false_is_none)] = None

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
