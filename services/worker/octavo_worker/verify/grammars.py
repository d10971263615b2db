"""Grammars that outputs must follow: compiled once, kept while used, one state for each sequence. Over llguidance.

Compiling is bounded by the library's limits and the length of the text, and gives up the interpreter lock, so it may
run in any thread. A grammar sees the bytes that the detokenizer will write; special tokens have none.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

import llguidance
import numpy as np

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Token
from octavo_worker.verify.context import GrammarStuck
from octavo_worker.verify.grammar_refusals import NO_OUTPUT, ONE_OF, plain_reason
from octavo_worker.verify.json_schemas import find_refused_one_of, json_grammar

KINDS = ("json_schema", "json_object", "regex", "choice", "ebnf")
MAX_CHARS = 64 * 1024
# Symbols of a compiled grammar; the library's own limit lets one compile for many seconds.
_MAX_SYMBOLS = 100_000
# Grammars that stay compiled though no request names them.
_NUM_SPARE = 64
_HINTS = {
    "json_schema": "send a JSON schema of the subset that can be enforced; the message names what is not",
    "json_object": "this kind takes no text",
    "regex": "send a regular expression in Rust's syntax; it must match the whole output",
    "choice": "send a JSON list of different, not empty strings",
    "ebnf": "send a grammar in GBNF (`root ::= ...`) or in Lark's form (`start: ...`)",
}
# Where a grammar goes on for ever without a choice, the library would look for its end for ever. Its last word counts.
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
_ONE_OF_HINT = (
    "use anyOf; or give each of them a required property with a const of its own; or take anyOf's meaning for it "
    'with "x-guidance": {"coerce_one_of": true} in the schema'
)


class InvalidGrammar(InvalidArgument):
    """The grammar cannot be read, or is too large to be enforced."""

    code = "INVALID_GRAMMAR"

    def __init__(self, message: str, *, kind: str, hint: str = "") -> None:
        hint = hint or _HINTS.get(kind, f"use one of {', '.join(KINDS)}")
        super().__init__(f"the grammar ({kind}) cannot be used: {message}", hint=hint, param="structured_output")


class GrammarKey(str):
    """The digest that names a compiled grammar. Whoever holds the key keeps the grammar."""

    __slots__ = ("__weakref__", "prototype")

    prototype: llguidance.LLMatcher


class GrammarMatcher:
    """A grammar's state after some tokens of one output."""

    def __init__(self, prototype: llguidance.LLMatcher, ends: np.ndarray) -> None:
        self._matcher = prototype.deep_copy()
        self._ends = ends

    def copy(self) -> GrammarMatcher:
        """The same state, on its own from now on."""
        return GrammarMatcher(self._matcher, self._ends)

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        return self._matcher.is_accepting()

    def accept(self, token: Token) -> bool:
        """Move on by a token; False, and nothing has changed, when the grammar does not allow it."""
        if token in self._ends or self._matcher.try_consume_tokens([token]) != 1:
            self._check()
            return False
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        self._matcher.rollback(num_tokens)

    def mask(self) -> np.ndarray:
        """A bit for each token that may come next, bytes, lowest bit first, without the end-of-sequence tokens.

        Raises GrammarStuck when the library's limits are exhausted.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8).copy()
        self._check()
        bits[self._ends >> 3] &= ~(1 << (self._ends & 7)).astype(np.uint8)
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarStuck(_first_line(self._matcher.get_error()))


class GrammarStore:
    """The compiled grammars of one model. May be shared between threads."""

    def __init__(self, bundle: TokenizerBundle, *, vocab_size: int, eos_ids: Sequence[Token]) -> None:
        """Nothing is built before the first grammar: it takes most of a second."""
        self._bundle = bundle
        self._vocab_size = vocab_size
        self._ends = np.array(sorted(set(eos_ids)), np.int64)
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._known: WeakValueDictionary[str, GrammarKey] = WeakValueDictionary()
        self._spare: OrderedDict[str, GrammarKey] = OrderedDict()

    def compile(self, kind: str, text: str = "") -> GrammarKey:
        """Name of the compiled grammar: give the very object to `SamplingParams.grammar`, it keeps the grammar alive.

        Takes milliseconds, up to seconds for the largest ones. Raises InvalidGrammar.
        """
        digest = hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            key = self._known.get(digest)
        if key is None:
            key = GrammarKey(digest)
            key.prototype = self._compile(kind, text)
        with self._lock:
            key = self._known.setdefault(digest, key)
            self._spare[digest] = key
            self._spare.move_to_end(digest)
            if len(self._spare) > _NUM_SPARE:
                self._spare.popitem(last=False)
        return key

    def get(self, key: str) -> GrammarMatcher:
        """A fresh state; raises KeyError when nobody keeps the grammar any more."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                raise KeyError("the request's grammar is not known here, or nobody has kept it")
            return GrammarMatcher(known.prototype, self._ends)

    def _compile(self, kind: str, text: str) -> llguidance.LLMatcher:
        definition = _definition(kind, text)
        tokenizer = self._get_tokenizer()
        limits = llguidance.LLParserLimits(max_grammar_size=_MAX_SYMBOLS, verbose_errors=False)
        matcher = llguidance.LLMatcher(tokenizer, definition, log_level=0, limits=limits)
        has_next = not matcher.is_error() and bool(np.any(np.frombuffer(matcher.compute_bitmask(), np.uint8)))
        if matcher.is_error():
            raise _refused(kind, text, matcher.get_error())
        if not has_next:
            raise InvalidGrammar(NO_OUTPUT, kind=kind)
        return matcher

    def _get_tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _make_tokenizer(self._bundle, self._vocab_size, self._ends.tolist())
            return self._tokenizer


def _definition(kind: str, text: str) -> str:
    """The library's form of the grammar."""
    if kind not in KINDS:
        raise InvalidGrammar("there is no such kind", kind=kind)
    if len(text) > MAX_CHARS:
        raise InvalidGrammar(f"it has {len(text)} characters, and at most {MAX_CHARS} are taken", kind=kind)
    try:
        text.encode("utf-8")
        if kind in ("json_object", "json_schema"):
            return json_grammar(text if kind == "json_schema" else '{"type": "object"}')
        if kind == "choice":
            return llguidance.grammar_from("lark", _lark_of_choices(text))
        if kind == "regex":
            return llguidance.grammar_from("regex", text)
        return llguidance.grammar_from("ebnf", text) + _NO_FORCING
    except InvalidGrammar:
        raise
    except (ValueError, RecursionError) as error:  # the library's own, and of its converter
        raise _refused(kind, text, str(error)) from error


def _refused(kind: str, text: str, message: str) -> InvalidGrammar:
    """The error in our words."""
    if kind == "json_schema" and ONE_OF in message:
        message = f"{ONE_OF} at {find_refused_one_of(text)}"
        return InvalidGrammar(plain_reason(kind, text, message), kind=kind, hint=_ONE_OF_HINT)
    return InvalidGrammar(plain_reason(kind, text, message), kind=kind)


def _lark_of_choices(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise InvalidGrammar("it is no list of texts", kind="choice")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _first_line(message: str) -> str:
    return (message.strip().splitlines() or ["unknown reason"])[0][:300]


class _Vocabulary:
    """What the library asks a tokenizer for."""

    def __init__(self, bundle: TokenizerBundle, vocab_size: int, ends: Sequence[Token]) -> None:
        # The template's helper process is not wanted here.
        self._tokenizer = Tokenizer(replace(bundle, chat_template=None))
        pieces = [self._tokenizer.pieces[token] for token in range(vocab_size)]
        self.special_token_ids = [
            token for token, piece in enumerate(pieces) if piece in (None, "", b"") or token in ends
        ]
        special = frozenset(self.special_token_ids)
        # Special ones, and ids that the tokenizer does not have, need names that no text contains.
        self.tokens = [
            f"<|octavo {token}|>".encode() if token in special else self._tokenizer.token_bytes(token)
            for token in range(vocab_size)
        ]
        self.eos_token_id = ends[0]
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids of a plain text."""
        plain = text if isinstance(text, str) else text.decode("utf-8")
        return self._tokenizer.encode(plain, add_special=False)


def _make_tokenizer(bundle: TokenizerBundle, vocab_size: int, ends: Sequence[Token]) -> llguidance.LLTokenizer:
    if not ends:
        raise FailedPrecondition(
            "the model names no end-of-sequence token, so structured output cannot end",
            code="NO_END_OF_SEQUENCE",
            hint="add eos_token_id to the model's generation_config.json",
        )
    vocabulary = _Vocabulary(bundle, vocab_size, ends)
    wrapper = llguidance.TokenizerWrapper(vocabulary)
    return llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=list(ends))
