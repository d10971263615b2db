"""What a stream has received of one answer. Pure; refuses what contradicts or does not continue it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import AbortedError, UnavailableError
from octavo.values import Choice, Chunk, FinishReason, TokenLogprobs


class Received:
    """Tokens [0, have) of one answer, each taken once and in order."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.token_ids: list[int] = list(token_ids)
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._echoed = False

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)

    def take(self, chunk: Chunk, *, echo: bool) -> bool:
        """Take a chunk; False if it brings nothing new.

        Raises UnavailableError when tokens are missing before it, and AbortedError when it contradicts what is here.
        """
        # The chunk: [first, end).
        have, first, end = len(self.token_ids), chunk.first_token, chunk.first_token + len(chunk.token_ids)
        if first > have:
            raise UnavailableError(f"tokens {have} to {first - 1} of the stream are missing")
        if tuple(self.token_ids[first:end]) != chunk.token_ids[: have - first]:
            raise AbortedError(
                "the stream went on with other tokens than it had sent",
                code="STREAM_DIVERGED",
                hint="get the job's result by its id, or ask again",
            )
        if chunk.token_ids and end <= have:
            return False
        if first < have:
            # The text of a part of a chunk is not known here; the platform sends it from the right token on.
            raise UnavailableError("a chunk overlaps what was received")
        if not chunk.token_ids and echo and self._is_second_echo(chunk):
            return False
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or chunk.prompt_logprobs
        if chunk.text:
            self.texts.append(chunk.text)
        return True

    def _is_second_echo(self, chunk: Chunk) -> bool:
        """The prompt's text comes before all tokens, and again when a stream is opened anew before the first."""
        if chunk.first_token > 0 or self.token_ids:
            return False
        second, self._echoed = self._echoed, True
        return second

    def choice(self, reason: FinishReason, score: float | None = None) -> Choice:
        """The answer, now that it has ended."""
        return Choice(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=reason,
            logprobs=tuple(self.logprobs),
            score=score,
        )
