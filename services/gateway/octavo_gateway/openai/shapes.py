"""The JSON of one request's generations in OpenAI's two APIs, whole and in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_common.jobs.spec import TokenLogprob
from octavo_gateway.openai.answers import usage
from octavo_gateway.openai.logprobs import Names
from octavo_gateway.values import AcceptedJob, ChoiceEnd, Finish, TokenPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What is told beside text. Needs names where anything is."""

    names: Names | None = None
    logprobs: bool = False
    # The log-probabilities of a completion that echoes begin with the prompt's.
    echo: bool = False
    # vLLM's field of its own for those of the prompt.
    prompt_logprobs: bool = False


@dataclass(slots=True, eq=False)
class Gathered:
    """One answer, put together from its pieces."""

    texts: list[str] = field(default_factory=list[str])
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def take(self, piece: TokenPiece) -> None:
        """Add a piece."""
        self.texts.append(piece.text)
        self.ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs


class Shape:
    """The JSON of one request: its head is the same in every piece, and named after its first job.

    Choices are numbered through, all of the first prompt before those of the second.
    """

    def __init__(self, jobs: Sequence[AcceptedJob], *, chat: bool, telling: Telling | None = None) -> None:
        first = jobs[0]
        self._num_each = first.num_choices
        self.num_choices = len(jobs) * first.num_choices
        self.num_prompt_tokens = sum(job.num_prompt_tokens for job in jobs)
        self._chat = chat
        self._prompt_ids = [job.prompt_ids for job in jobs]
        self._telling = telling or Telling()
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{first.job_id}",
            "created": int(first.create_time.timestamp()),
            "model": first.model,
            "system_fingerprint": None,
        }

    def index(self, prompt: int, choice: int) -> int:
        """Number of a prompt's answer among all."""
        return prompt * self._num_each + choice

    def whole(self, answers: Sequence[Gathered], finishes: Sequence[Finish]) -> dict[str, Any]:
        """All answers in one piece; one finish for each prompt."""
        ends = [end for finish in finishes for end in finish.ends]
        choices = [
            self._whole_choice(index, answer, end)
            for index, (answer, end) in enumerate(zip(answers, ends, strict=False))
        ]
        kind = "chat.completion" if self._chat else "text_completion"
        whole = self._head | {
            "object": kind,
            "choices": choices,
            "usage": usage(*(finish.usage for finish in finishes)),
        }
        if self._chat and self._telling.prompt_logprobs:
            whole["prompt_logprobs"] = self._prompt(0, answers[0].prompt_logprobs)
        return whole

    def _whole_choice(self, index: int, answer: Gathered, end: ChoiceEnd) -> dict[str, Any]:
        text = "".join(answer.texts)
        prompt = index // self._num_each
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": self._logprobs(prompt, answer.ids, answer.logprobs, answer.prompt_logprobs),
            "finish_reason": end.finish_reason,
        }
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
            if self._telling.prompt_logprobs:
                choice["prompt_logprobs"] = self._prompt(prompt, answer.prompt_logprobs)
        return choice | _scored(end)

    def opening(self) -> list[dict[str, Any]]:
        """The first pieces of a stream; only chats have them, to name the role."""
        if not self._chat:
            return []
        return [self._chunk(n, {"delta": {"role": "assistant", "content": ""}}) for n in range(self.num_choices)]

    def piece(self, piece: TokenPiece, prompt: int = 0) -> dict[str, Any] | None:
        """A piece of an answer, if there is something to say of it."""
        told = self._logprobs(prompt, piece.token_ids, piece.logprobs, piece.prompt_logprobs)
        has_told = told is not None and bool(piece.token_ids or piece.prompt_logprobs)
        has_prompt = self._telling.prompt_logprobs and bool(piece.prompt_logprobs)
        if not (piece.text or has_told or has_prompt):
            return None
        content: dict[str, Any] = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
        content["logprobs"] = told if has_told else None
        if has_prompt and not self._chat:
            content["prompt_logprobs"] = self._prompt(prompt, piece.prompt_logprobs)
        chunk = self._chunk(self.index(prompt, piece.choice), content)
        if has_prompt and self._chat:
            chunk["prompt_logprobs"] = self._prompt(prompt, piece.prompt_logprobs)
        return chunk

    def closing(self, finish: Finish, prompt: int = 0) -> list[dict[str, Any]]:
        """The pieces that say why each answer of a prompt ended."""
        content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return [
            self._chunk(self.index(prompt, number), content | {"finish_reason": end.finish_reason} | _scored(end))
            for number, end in enumerate(finish.ends)
        ]

    def usage_piece(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """The piece after the last, without a choice; one finish for each prompt."""
        return self._head | {
            "object": self._kind,
            "choices": [],
            "usage": usage(*(finish.usage for finish in finishes)),
        }

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, index: int, content: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **content}
        return self._head | {"object": self._kind, "choices": [choice]}

    def _logprobs(
        self, prompt: int, ids: Sequence[int], told: Sequence[TokenLogprob], of_prompt: Sequence[TokenLogprob]
    ) -> dict[str, Any] | None:
        names = self._telling.names
        if names is None or not self._telling.logprobs:
            return None
        if self._chat:
            return names.chat(ids, told)
        lead = of_prompt if self._telling.echo else ()
        return names.completion([*self._prompt_ids[prompt][: len(lead)], *ids], [*lead, *told])

    def _prompt(self, prompt: int, told: Sequence[TokenLogprob]) -> list[dict[str, Any] | None] | None:
        assert self._telling.names is not None, "names for what is told"
        return self._telling.names.prompt(self._prompt_ids[prompt], told) if told else None


def _scored(end: ChoiceEnd) -> dict[str, Any]:
    return {} if end.score is None else {"octavo": {"score": end.score}}
