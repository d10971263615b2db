"""Parts of request bodies that several of them have. Types only: what the values may be is said elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _none_is_empty(value: Any) -> Any:
    return "" if value is None else value


def _none_is_false(value: Any) -> Any:
    return False if value is None else value


OptionalText = Annotated[str, BeforeValidator(_none_is_empty)]
Flag = Annotated[bool, BeforeValidator(_none_is_false)]


class Body(BaseModel):
    """Fields of their own types; further ones are kept, to be named to the caller."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(Body):
    """What a stream carries beside its text."""

    include_usage: Flag = False
    # The usage so far in every chunk.
    continuous_usage_stats: Flag = False


class TextPart(Body):
    """A piece of a message."""

    type: str
    text: str | None = None


class ChatMessageBody(Body):
    """One turn of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
