"""Decides which tokens of an answer may leave, and with which text; ends the answer at a stop string.

Pure: token ids in, tokens with text out. What comes out depends on the ids alone, never on how pushes cut them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from octavo_common.text.detokenizer import Detokenizer, TokenText
from octavo_common.text.stopping import StopMatcher
from octavo_common.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Tokens that became certain: the ones after all that were released before."""

    # The text of each of them; a character belongs to the token in which it begins.
    texts: tuple[str, ...] = ()
    # A stop string ended the answer. The last token kept is the one in which it begins, with its text cut; every token
    # that was pushed after it is dropped. Nothing may be pushed any more.
    stopped: bool = False

    @property
    def num_released(self) -> int:
        """How many tokens."""
        return len(self.texts)

    @property
    def text(self) -> str:
        """The text of all of them."""
        return "".join(self.texts)


class _Held(NamedTuple):
    """A token whose text is known and in which a stop string may begin."""

    text: str
    whole: bool
    # Characters of the answer up to the end of the token.
    end: int


class TextStream:
    """The text of one answer. Not thread-safe.

    A token is released when all of its text is certain: no character open at its end, no stop string begun in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        mid_text: bool = False,
        keep_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """With mid_text the answer continues the prompt's text instead of opening a text of its own.

        With keep_stop a stop string stays in the answer, which ends with its last character. Stop strings are looked
        for behind the first min_tokens tokens.
        """
        self._keep_stop = keep_stop
        self._num_unwatched = min_tokens
        self._make_detokenizer = partial(Detokenizer, tokenizer, mid_text=mid_text)
        self._detokenizer = self._make_detokenizer()
        self._matcher = StopMatcher(stop)
        # Text of every released token. The tokens of an answer are, in order, [settled | safe | held | open in the
        # detokenizer), and released are exactly the settled ones, or more after a replay.
        self._texts: list[str] = []
        self._num_settled = 0
        # Cannot hold a stop string, but a character is open at the end of each.
        self._safe: list[str] = []
        # A stop string may begin in them.
        self._held: deque[_Held] = deque()
        # Characters of the answer that are known.
        self._num_chars = 0
        self._ended = False

    @property
    def num_released(self) -> int:
        """Tokens released since the start, replayed ones included; after a stop, the tokens of the answer."""
        return len(self._texts)

    @property
    def texts(self) -> Sequence[str]:
        """The text of every released token."""
        return self._texts

    @property
    def text(self) -> str:
        """The text of all released tokens; after the end, the answer's."""
        return "".join(self._texts)

    @property
    def ended(self) -> bool:
        """A stop string was found, or finish was called."""
        return self._ended

    def push(self, ids: Sequence[int]) -> Released:
        """Take the next tokens of the answer."""
        assert not self._ended, "the answer has ended"
        before = len(self._texts)
        for token_id in ids:
            for token in self._detokenizer.feed(token_id):
                if self._take(token):
                    return self._stop(before)
        return Released(texts=tuple(self._texts[before:]))

    def finish(self) -> Released:
        """No more tokens: everything that was held back becomes certain."""
        assert not self._ended, "the answer has ended"
        before = len(self._texts)
        for token in self._detokenizer.end():
            if self._take(token):
                return self._stop(before)
        self._ended = True
        self._safe += [held.text for held in self._held]
        self._settle()
        return Released(texts=tuple(self._texts[before:]))

    def replay(self, ids: Sequence[int]) -> Released:
        """Take the tokens that an earlier attempt released, as released, and return them with their text.

        Afterwards the state is that of the attempt when it had released these, so the same tokens give the same texts.
        `stopped` says that they hold a whole stop string: then there is nothing left to generate.
        """
        assert not self._texts and not self._held, "replay comes first"
        released = self.push(ids)
        if released.stopped:
            return released
        # The attempt knew by later tokens that the border after these was sound: up to it they decode by themselves.
        alone = self._make_detokenizer()
        texts = [token.text for i in ids for token in alone.feed(i)] + [token.text for token in alone.end()]
        self._texts += texts[len(self._texts) :]
        return Released(texts=tuple(self._texts))

    def _take(self, token: TokenText) -> bool:
        """Add a token whose text is known; True when a stop string is complete: the answer then ends at num_chars."""
        found = None
        if self._num_unwatched:
            self._num_unwatched -= 1
        else:
            found = self._matcher.push(token.text)
        end = self._num_chars + len(token.text)
        self._held.append(_Held(token.text, token.whole, end))
        if found is not None:
            num_read, length = found
            self._num_chars += num_read if self._keep_stop else num_read - length
            return True
        self._num_chars = end
        # A stop string that is kept takes nothing from the tokens in which it begins: none has to wait for its end.
        num_held = 0 if self._keep_stop else self._matcher.num_held
        while self._held and self._held[0].end <= end - num_held:
            text, whole, _ = self._held.popleft()
            self._safe.append(text)
            if whole:
                self._settle()
        return False

    def _stop(self, before: int) -> Released:
        """End the answer at character number num_chars, with the token in which that would begin if it is not whole."""
        self._ended = True
        for text, _, end in self._held:
            num_beyond = max(0, end - self._num_chars)
            self._safe.append(text[: max(0, len(text) - num_beyond)])
            # Replayed tokens stay in the answer even where they hold more of the stop string than its beginning.
            if num_beyond and self._num_settled + len(self._safe) >= before:
                break
        self._settle()
        return Released(texts=tuple(self._texts[before:]), stopped=True)

    def _settle(self) -> None:
        """The safe tokens are released, with the text they have now."""
        for text in self._safe:
            if self._num_settled < len(self._texts):
                self._texts[self._num_settled] = text
            else:
                self._texts.append(text)
            self._num_settled += 1
        self._safe.clear()
