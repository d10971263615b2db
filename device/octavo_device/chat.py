"""A conversation with a bundle: questions in, text of answers out, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_device.bundle import Bundle
from octavo_device.errors import DeviceError
from octavo_device.generation import Generation
from octavo_device.model import DeviceModel
from octavo_device.sampling import Sampling
from octavo_device.text import Text, TextStream, Turn, read_chat

__all__ = ["Conversation"]


class Conversation:
    """Remembers what was said. ``raw`` takes each text as it is, behind what was said before."""

    def __init__(
        self,
        bundle: Bundle,
        sampling: Sampling,
        *,
        raw: bool = False,
        system: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Raises DeviceError when the model has no chat that it can hold."""
        if raw and system is not None:
            raise DeviceError("a plain text has no system text", hint="leave out --raw or --system")
        self._bundle, self._sampling, self._system, self._max_tokens = bundle, sampling, system, max_tokens
        self._pieces = None if raw else read_chat(bundle.folder)
        self._text = Text(bundle.folder)
        self._generation = Generation(DeviceModel(bundle))
        self._turns: list[Turn] = []
        self._said = ""

    @property
    def finish_reason(self) -> str:
        """Of the last answer: stop, length or context."""
        return self._generation.finish_reason

    def ask(self, question: str) -> Iterator[str]:
        """The answer in pieces.

        Raises:
            ContextFull: The conversation has no room for the question.
        """
        stream, answer = TextStream(self._text), ""
        for token in self._generation.answer(self._prompt(question), self._sampling, self._max_tokens):
            piece = stream.add(token)
            if piece:
                answer += piece
                yield piece
        if rest := stream.end():
            answer += rest
            yield rest
        self._turns.append(Turn(user=question, answer=answer))
        self._said += question + answer

    def _prompt(self, question: str) -> list[int]:
        if self._pieces is None:
            return [*self._bundle.prompt_prefix_ids, *self._text.ids(self._said + question)]
        return self._text.ids(self._pieces.render([*self._turns, Turn(user=question)], self._system))
