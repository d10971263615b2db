"""Text to tokens and back: the bundle's tokenizer, text piece by piece, and the chat's frame around users' texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_device.errors import BundleDamaged, DeviceError

__all__ = ["ChatPieces", "Text", "TextStream", "Turn", "read_chat"]

_HALF = "\N{REPLACEMENT CHARACTER}"  # what decoders give for bytes that are no whole character


class Text:
    """The tokenizer of a bundle."""

    def __init__(self, folder: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise DeviceError("tokenizers is not installed", hint="pip install tokenizers") from None
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises the bare class
            raise BundleDamaged(f"tokenizer.json cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids(self, text: str) -> list[int]:
        """Tokens of a text; what reads as a special token is one."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


class TextStream:
    """Gives the text of tokens as they come, never half a character."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._ids: list[int] = []
        # Tokens [start, ...) are decoded together, since the first of a text may lose its space; those before `told`
        # have been given out.
        self._start = self._told = 0

    def add(self, token: int) -> str:
        """What is certain now: empty while a character is open."""
        self._ids.append(token)
        before = self._text.text(self._ids[self._start : self._told])
        now = self._text.text(self._ids[self._start :])
        if len(now) <= len(before) or now.endswith(_HALF):
            return ""
        self._start, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def end(self) -> str:
        """What is left when no token comes any more, without a character that never ended."""
        before = self._text.text(self._ids[self._start : self._told])
        return self._text.text(self._ids[self._start :])[len(before) :].rstrip(_HALF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question, and its answer once it is there."""

    user: str
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPieces:
    """A chat template as text around users' texts.

    ``first`` is before and after the first user's text, ``following`` between an answer and the next user's text and
    after that; ``system`` is before and after a system text, and after the user's text that comes behind it. With
    ``trims``, texts stand without the space around them.
    """

    first: tuple[str, str]
    following: tuple[str, str] | None
    system: tuple[str, str, str] | None
    trims: bool = False

    def render(self, turns: Sequence[Turn], system: str | None = None) -> str:
        """The chat as one text, up to where the next answer begins.

        Raises:
            DeviceError: The template takes no system text, or no second question.
        """
        if self.trims:
            turns = [Turn(user=turn.user.strip(), answer=turn.answer and turn.answer.strip()) for turn in turns]
            system = system and system.strip()
        if system is None:
            text = f"{self.first[0]}{turns[0].user}{self.first[1]}"
        elif self.system is None:
            raise DeviceError("the model's chat template takes no system text here", hint="leave out --system")
        else:
            before, between, after = self.system
            text = f"{before}{system}{between}{turns[0].user}{after}"
        for earlier, turn in itertools.pairwise(turns):
            if self.following is None:
                raise DeviceError("the model's chat template is for one question", hint="begin anew")
            text += f"{earlier.answer}{self.following[0]}{turn.user}{self.following[1]}"
        return text


def read_chat(folder: Path) -> ChatPieces:
    """The chat's frame.

    Raises:
        DeviceError: The model has none that can be had without a template engine.
        BundleDamaged: The file is damaged.
    """
    file = folder / "chat.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        following, system = value.get("next"), value.get("system")
        return ChatPieces(
            first=(value["first"][0], value["first"][1]),
            following=None if following is None else (following[0], following[1]),
            system=None if system is None else (system[0], system[1], system[2]),
            trims=bool(value.get("trims", False)),
        )
    except FileNotFoundError:
        told = "the bundle has no chat.json: the model has no chat template, or one that needs a template engine"
        raise DeviceError(told, hint="--raw continues a plain text") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BundleDamaged(f"chat.json cannot be read: {error}") from None
