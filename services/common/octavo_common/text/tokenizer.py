"""A model's tokenizer over Hugging Face `tokenizers`. Knows no streams and no limits of a model's context.

Encoding a text of megabytes takes seconds, and rendering a chat waits for another process: call `encode` and `chat`
from a thread, never from an event loop. Long texts are encoded without the interpreter lock, so other threads go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.decoding import PieceTable, parse_decoder
from octavo_common.text.template import ChatTemplate

# Longest text that is encoded at all; about half a million tokens.
MAX_CHARS = 2_000_000
# Above this the library is called in the way that gives up the interpreter lock.
_LONG_CHARS = 4096


class TextTooLong(InvalidArgument):
    """The text is longer than any that is encoded."""

    code = "PROMPT_TOO_LONG"

    def __init__(self, *, num_chars: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {num_chars} characters, and at most {limit} can be taken",
            hint="shorten the prompt, or ask a model with a longer context",
            param="prompt",
        )


def check_text(text: str, *, param: str) -> None:
    """Refuse text that has no UTF-8 form (lone surrogates, which JSON can bring in)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{param} holds a lone surrogate at character {error.start}: it is not valid Unicode text", param=param
        ) from error


class Tokenizer:
    """Text to ids and back, for one bundle. May be shared between threads."""

    def __init__(self, bundle: TokenizerBundle, *, template: ChatTemplate | None = None) -> None:
        """Raises UnsupportedTokenizer when the bundle's tokenizer cannot be read or its decoder is not known."""
        self.bundle = bundle
        try:
            self._tokenizer = HfTokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # the library raises the bare class
            raise UnsupportedTokenizer(f"the tokenizer cannot be read: {error}") from error
        # A file may ask for cuts and padding, which would change prompts silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.pieces = PieceTable(self._tokenizer, parse_decoder(bundle.tokenizer_json))
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._prefix, self._suffix = self._special_frame()
        self._longest_token = max((len(t) for t in self._tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self._template = template
        if template is None and bundle.chat_template is not None:
            self._template = ChatTemplate(bundle.chat_template, special_tokens=_template_tokens(bundle))

    @classmethod
    def from_bundle(cls, bundle: TokenizerBundle) -> Tokenizer:
        """Same as the constructor."""
        return cls(bundle)

    def _special_frame(self) -> tuple[list[int], list[int]]:
        """The special ids in front of and behind a plain text."""
        bare = self._tokenizer.encode("x", add_special_tokens=False).ids
        full = self._tokenizer.encode("x", add_special_tokens=True).ids
        start = next((n for n in range(len(full) - len(bare) + 1) if full[n : n + len(bare)] == bare), 0)
        prefix, suffix = full[:start], full[start + len(bare) :]
        bos = None if self.bundle.bos_token is None else self._tokenizer.token_to_id(self.bundle.bos_token)
        if bos is not None:
            if self.bundle.add_bos and prefix[:1] != [bos]:
                prefix = [bos, *prefix]
            if not self.bundle.add_bos and prefix[:1] == [bos]:
                prefix = prefix[1:]
        return prefix, suffix

    def max_chars(self, max_tokens: int) -> int:
        """A text of more characters than this has more tokens than that."""
        return max_tokens * self._longest_token

    def encode(self, text: str, *, add_special: bool = True, max_tokens: int | None = None) -> list[int]:
        """Ids of the text; with add_special, framed by the special tokens that the model wants around plain text.

        With max_tokens, a text that is too long for them in any case is refused before any work; a shorter one may
        still give more tokens. Raises InvalidArgument for lone surrogates and for text beyond MAX_CHARS.
        """
        limit = MAX_CHARS if max_tokens is None else min(MAX_CHARS, self.max_chars(max_tokens))
        if len(text) > limit:
            raise TextTooLong(num_chars=len(text), limit=limit)
        check_text(text, param="prompt")
        if len(text) <= _LONG_CHARS:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        else:
            # The batch form gives up the interpreter lock, the single one does not.
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids without special tokens; ids outside the vocabulary have no text."""
        return self._tokenizer.decode([i for i in ids if 0 <= i < 2**32], skip_special_tokens=True)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact content; None when there is no such token."""
        return self._tokenizer.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token by itself: of a special one its name, of an id outside the vocabulary none."""
        piece = self.pieces[token_id]
        if isinstance(piece, str):
            return piece.encode("utf-8")
        if isinstance(piece, int):
            return bytes((piece,))
        if piece is not None:
            return piece
        return (self._tokenizer.id_to_token(token_id) or "").encode("utf-8") if 0 <= token_id < 2**32 else b""

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be called."""
        return self._template is not None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The chat as one text.

        Raises FailedPrecondition when the model has no template, and what ChatTemplate.render raises.
        """
        if self._template is None:
            raise FailedPrecondition(
                "the model has no chat template", code="NO_CHAT_TEMPLATE", hint="send a prompt instead of messages"
            )
        num_chars = 0
        for number, message in enumerate(messages):
            for name, value in message.items():
                if isinstance(value, str):
                    check_text(value, param=f"messages[{number}].{name}")
                    num_chars += len(value)
        if num_chars > MAX_CHARS:
            raise TextTooLong(num_chars=num_chars, limit=MAX_CHARS)
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Ids of the rendered chat; the template itself writes the special tokens."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special=False, max_tokens=max_tokens)

    def close(self) -> None:
        """End the template's helper process. The tokenizer itself stays usable; a later chat starts a new one."""
        if self._template is not None:
            self._template.close()


def _template_tokens(bundle: TokenizerBundle) -> dict[str, str]:
    tokens = dict(bundle.special_tokens)
    if bundle.bos_token is not None:
        tokens["bos_token"] = bundle.bos_token
    if bundle.eos_token is not None:
        tokens["eos_token"] = bundle.eos_token
    return tokens
