"""Request bodies of the OpenAI API as pydantic models, and how they become a RawRequest.

What would change the answer and cannot be done is refused; what cannot change it is ignored and named to the caller.
Values are checked for their types only: their ranges are `validation`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ValidationError

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.generation import GenerationBody, false_is_none
from octavo_gateway.openai.parts import Body, ChatMessageBody, Flag, TextPart
from octavo_gateway.openai.support import refuse_unknown_options, refuse_unsupported
from octavo_gateway.requests import Message, RawRequest, RequestLimits

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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

    @property
    def names(self) -> dict[str, str]:
        """What stands in the body, by the gateway's names."""
        names = super().names | {"logprobs": "top_logprobs", "prompt": "messages"}
        return names if self.max_completion_tokens is None else names | {"max_tokens": "max_completion_tokens"}

    def raw_requests(self, idempotency_key: str, bounds: RequestLimits) -> list[RawRequest]:
        """The only one."""
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
        return [RawRequest(messages=messages, max_tokens=max_tokens, **self.common(idempotency_key))]


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

    @property
    def names(self) -> dict[str, str]:
        """What stands in the body, by the gateway's names."""
        names = super().names | {"token_ids": "prompt"}
        # With echo the prompt's tokens are told by the same field.
        return names if self.prompt_logprobs is not None else names | {"prompt_logprobs": "logprobs"}

    def raw_requests(self, idempotency_key: str, bounds: RequestLimits) -> list[RawRequest]:
        """One for each prompt. Raises BadRequest for too many."""
        max_tokens = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        prompts = self._prompts(bounds)
        fields = self.common(idempotency_key)
        if self.echo and self.logprobs is not None:
            # The prompt's tokens are told like the others.
            fields["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        requests: list[RawRequest] = []
        for number, prompt in enumerate(prompts):
            if idempotency_key and len(prompts) > 1:
                # A key of its own for each job: the request again finds them all.
                fields["idempotency_key"] = f"{idempotency_key}#{number}"
            given = {"prompt": prompt} if isinstance(prompt, str) else {"token_ids": prompt}
            requests.append(RawRequest(echo=self.echo, max_tokens=max_tokens, **given, **fields))
        return requests

    def _prompts(self, bounds: RequestLimits) -> list[str | list[int]]:
        """The prompts, whether there is one (text, or ids) or a list of them."""
        prompt = self.prompt
        if prompt is None:
            raise BadRequest("the request has no prompt", code="EMPTY_PROMPT", param="prompt")
        if isinstance(prompt, str):
            return [prompt]
        if not prompt or isinstance(prompt[0], int):
            return [[token for token in prompt if isinstance(token, int)]]
        prompts = [part for part in prompt if not isinstance(part, int)]
        if len(prompts) > bounds.max_prompts:
            raise BadRequest(
                f"at most {bounds.max_prompts} prompts are taken in a request, and there are {len(prompts)}",
                code="INVALID_ARGUMENT",
                param="prompt",
                hint="send several requests: they are batched together anyway",
            )
        size = sum(map(len, prompts))
        if size > bounds.max_prompt_chars:
            raise BadRequest(
                f"the prompts have {size} characters or ids together, and at most {bounds.max_prompt_chars} are taken",
                code="PROMPT_TOO_LARGE",
                param="prompt",
                hint="send several requests",
            )
        return prompts


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
        first = _deepest(error.errors(include_url=False, include_context=False, include_input=False))
        param = _param(value, first["loc"], is_missing=first["type"] == "missing")
        raise BadRequest(f"{param or 'the body'}: {first['msg']}", code="INVALID_ARGUMENT", param=param) from error


def _deepest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Of the first field at fault, what is said of its innermost part: of a union that is the alternative meant."""
    field = errors[0]["loc"][:1]
    return max((error for error in errors if error["loc"][:1] == field), key=lambda error: len(error["loc"]))


def _param(body: Any, loc: tuple[int | str, ...], *, is_missing: bool) -> str | None:
    """The field's path in the body, without the alternatives of a union that pydantic names in it."""
    path, here = "", body
    for number, part in enumerate(loc):
        if isinstance(part, int):
            if not isinstance(here, list) or part >= len(here):
                break
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(here, dict) and (part in here or (is_missing and number == len(loc) - 1)):
            path, here = f"{path}.{part}" if path else part, here.get(part)
    return path or None
