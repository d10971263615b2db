"""A chat template as pieces of text that need no template engine, if it can be had so. Checked against the template.

A template is asked about marked texts, and what it puts around the marks are the pieces; then other chats are rendered
both ways and have to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo_common.errors import OctavoError
from octavo_device.text import ChatPieces, Turn

__all__ = ["Reduction", "chat_document", "reduce_template"]

Message = dict[str, str]
# Renders messages up to where the next answer begins.
Render = Callable[[Sequence[Message]], str]

_SYSTEM, _USER, _ANSWER, _AGAIN = "markone told", "marktwo asked", "markthree said", "markfour asked"
_CHATS = (
    [Turn(user="What is 7 * 6?")],
    [Turn(user="Größe, 東京 {{ x }} <b>", answer="Two\n\nlines."), Turn(user="And?\nthen")],
    [Turn(user="one", answer="1"), Turn(user="two", answer="2"), Turn(user="three")],
)
_SPACED = [Turn(user="  spaced \n", answer=" so "), Turn(user="\tagain ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The pieces, or why there are none; ``warning`` may also say what they lack."""

    pieces: ChatPieces | None
    warning: str = ""


def reduce_template(render: Render) -> Reduction:
    """Find the pieces of what renders a chat."""
    try:
        first = _around(render([_user(_USER)]), [_USER])
        if first is None:
            return Reduction(pieces=None, warning="the chat template changes what users say")
    except OctavoError as error:
        return Reduction(pieces=None, warning=f"the chat template cannot be used: {error.message}")
    system, following = _tried(render, _system_pieces), _tried(render, _following_pieces)
    for trims in (False, True):
        pieces = ChatPieces(
            first=(first[0], first[1]),
            following=None if following is None else (following[0], following[1]),
            system=None if system is None else (system[0], system[1], system[2]),
            trims=trims,
        )
        if _agrees(render, pieces):
            lacks = [word for word, found in (("system text", system), ("second question", following)) if found is None]
            told = f"the chat on the device takes no {' and no '.join(lacks)}: the template has none" if lacks else ""
            return Reduction(pieces=pieces, warning=told)
    told = "the chat template is more than text around what is said: on the device there is no chat, only plain text"
    return Reduction(pieces=None, warning=told)


def chat_document(pieces: ChatPieces) -> dict[str, Any]:
    """As ``chat.json`` holds them."""
    value = asdict(pieces)
    return {"first": value["first"], "next": value["following"], "system": value["system"], "trims": value["trims"]}


def _agrees(render: Render, pieces: ChatPieces) -> bool:
    chats = [*_CHATS, _SPACED]
    if pieces.following is None:
        chats = [[Turn(user=chat[0].user)] for chat in chats]
    systems = (None, "Be brief.\nAlways.") if pieces.system is not None else (None,)
    try:
        return all(
            render(_messages(chat, system)) == pieces.render(chat, system) for chat in chats for system in systems
        )
    except OctavoError:
        return False


def _tried(render: Render, find: Callable[[Render], list[str] | None]) -> list[str] | None:
    """Pieces, if the template takes such a chat."""
    try:
        return find(render)
    except OctavoError:
        return None


def _system_pieces(render: Render) -> list[str] | None:
    return _around(render([{"role": "system", "content": _SYSTEM}, _user(_USER)]), [_SYSTEM, _USER])


def _following_pieces(render: Render) -> list[str] | None:
    chat = [_user(_USER), {"role": "assistant", "content": _ANSWER}, _user(_AGAIN)]
    around = _around(render(chat), [_USER, _ANSWER, _AGAIN])
    return None if around is None else around[2:]


def _around(text: str, marks: Sequence[str]) -> list[str] | None:
    """What is before, between and behind the marks; None if one is not there once, or out of order."""
    pieces: list[str] = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, _, text = text.partition(mark)
        pieces.append(before)
    return [*pieces, text]


def _messages(chat: Sequence[Turn], system: str | None) -> list[Message]:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for turn in chat:
        messages.append(_user(turn.user))
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    return messages


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
