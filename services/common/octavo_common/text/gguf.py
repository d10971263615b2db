"""Builds a tokenizer bundle out of a GGUF file's metadata: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``).

The result is a Hugging Face tokenizer.json, so that everything after it is one path for both formats. How text is cut
before merging follows the original tokenizers that llama.cpp's names stand for. Knows no container and no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from octavo_common.errors import FailedPrecondition
from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_PREFIX = "tokenizer.ggml."
_SPACE = "\u2581"
# Longer than any token: how it could be made of two is looked for at each of its characters.
_MAX_TOKEN_CHARS = 1 << 10

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class DamagedTokenizer(FailedPrecondition):
    """The metadata contradicts itself; the message names the entry."""

    code = "DAMAGED_TOKENIZER"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """How a byte-level tokenizer cuts text before it merges."""

    pattern: str | None = None
    """None: the pattern of GPT-2."""
    single_digits: bool = False
    whole_words: bool = False
    """A word that is a token is taken whole, though no merges lead to it."""
    nfc: bool = False
    add_bos: bool = False
    """What holds when the file does not say."""


_GPT2_CUT = _Cut()
_DIGITS_CUT = _Cut(single_digits=True)
_LLAMA3_CUT = _Cut(pattern=_LLAMA3, whole_words=True, add_bos=True)
_CUTS = {
    **dict.fromkeys(("default", "gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), _GPT2_CUT),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_CUT),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3_CUT),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Cut(pattern=_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _Cut(pattern=_QWEN2, nfc=True)),
    "tekken": _Cut(pattern=_TEKKEN, whole_words=True, add_bos=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """The tokenizer's part of the metadata, checked."""

    where: Path
    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    scores: list[float]
    metadata: dict[str, Any]

    def special(self, name: str) -> str | None:
        """The text of a special token."""
        number = self.metadata.get(f"{name}_token_id")
        return self.tokens[number] if isinstance(number, int) and 0 <= number < len(self.tokens) else None

    def flag(self, name: str, default: bool) -> bool:
        """A boolean of the metadata."""
        value = self.metadata.get(name)
        return value if isinstance(value, bool) else default


def bundle_from_metadata(metadata: Mapping[str, Any], *, where: Path) -> TokenizerBundle:
    """The tokenizer, chat template and special tokens of a GGUF file's metadata.

    Arrays are lists of Python's own strings and numbers; ``where`` is the file, for messages.

    Raises:
        UnsupportedTokenizer: A kind that we cannot build exactly.
        DamagedTokenizer: Entries are missing or do not fit each other.
    """
    vocabulary = _read(metadata, where)
    if vocabulary.model == "gpt2":
        tokenizer, add_bos = _byte_level(vocabulary)
    elif vocabulary.model == "llama":
        tokenizer, add_bos = _sentencepiece(vocabulary), True
    else:
        raise UnsupportedTokenizer(
            f"{where}: the tokenizer {vocabulary.model!r} is not supported", hint="supported: gpt2, llama"
        )
    bos = vocabulary.special("bos")
    add_bos = vocabulary.flag("add_bos_token", add_bos) and bos is not None
    if add_bos:
        assert bos is not None
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0",
            pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    others = {"unk_token": vocabulary.special("unknown"), "pad_token": vocabulary.special("padding")}
    template = metadata.get("tokenizer.chat_template")
    return TokenizerBundle(
        tokenizer_json=tokenizer.to_str(),
        chat_template=template if isinstance(template, str) else None,
        bos_token=bos,
        eos_token=vocabulary.special("eos"),
        eos_ids=eos_ids(metadata),
        add_bos=add_bos,
        special_tokens=tuple(sorted((name, text) for name, text in others.items() if text is not None)),
    )


def eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a generation: end of sequence, of turn and of message, where the file names them."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (metadata.get(f"{_PREFIX}{name}") for name in names)
    return tuple(sorted({token for token in found if isinstance(token, int) and not isinstance(token, bool)}))


def _read(everything: Mapping[str, Any], where: Path) -> _Vocabulary:
    metadata = {k.removeprefix(_PREFIX): v for k, v in everything.items() if k.startswith(_PREFIX)}
    if "model" not in metadata:
        raise UnsupportedTokenizer(f"{where} has no tokenizer", hint="use a GGUF file made from a whole model")
    tokens = _array(where, metadata, "tokens", str)
    if len(set(tokens)) != len(tokens):
        raise DamagedTokenizer(f"{where} is corrupt: tokenizer.ggml.tokens has tokens twice")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN_CHARS:
        raise DamagedTokenizer(f"{where} is corrupt: tokenizer.ggml.tokens has a token of {longest} characters")
    kinds = _array(where, metadata, "token_type", int, default=[_NORMAL] * len(tokens))
    scores = _array(where, metadata, "scores", float, default=[0.0] * len(tokens))
    for name, values in (("token_type", kinds), ("scores", scores)):
        if len(values) != len(tokens):
            raise DamagedTokenizer(
                f"{where} is corrupt: {_PREFIX}{name} has {len(values)} entries for {len(tokens)} tokens"
            )
    return _Vocabulary(
        where=where,
        model=str(metadata["model"]),
        pre=str(metadata.get("pre", "default")),
        tokens=tokens,
        kinds=kinds,
        merges=_array(where, metadata, "merges", str, default=[]),
        scores=scores,
        metadata=metadata,
    )


def _array(where: Path, metadata: dict[str, Any], name: str, kind: type, default: list[Any] | None = None) -> Any:
    values = metadata.get(name, default)
    if (
        not isinstance(values, list)
        or not all(type(value) is kind for value in values)
        or (default is None and not values)
    ):
        raise DamagedTokenizer(f"{where} is corrupt: tokenizer.ggml.{name} is missing or no list of {kind.__name__}")
    return values


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """GPT-2's scheme: bytes spelled as letters, merges from the file. Also whether BOS is added by default."""
    cut = _CUTS.get(vocabulary.pre)
    if cut is None:
        raise UnsupportedTokenizer(
            f"{vocabulary.where}: the pre-tokenizer {vocabulary.pre!r} is not supported",
            hint=f"supported: {', '.join(sorted(_CUTS))}",
        )
    tokenizer = _build(
        vocabulary,
        vocab=_byte_level_vocab(vocabulary),
        merges=[_pair(vocabulary, merge) for merge in vocabulary.merges],
        ignore_merges=cut.whole_words,
    )
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None)
    before: list[Any] = []
    if cut.single_digits:
        before.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern is not None:
        before.append(pre_tokenizers.Split(Regex(cut.pattern), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, byte_level]) if before else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    _add_specials(tokenizer, vocabulary)
    return tokenizer, cut.add_bos


def _byte_level_vocab(vocabulary: _Vocabulary) -> dict[str, int]:
    """Ids by spelling. Ordinary tokens with letters outside the byte alphabet are plain text, and get spelled."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab: dict[str, int] = {}
    for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind == _NORMAL and not alphabet.issuperset(token):
            token = "".join(piece for piece, _ in spell.pre_tokenize_str(token))
        vocab.setdefault(token, number)
    return vocab


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """Llama 2's scheme: spaces spelled as a letter, merges in the order of scores, unknown letters as bytes."""
    vocab = {token: number for number, token in enumerate(vocabulary.tokens)}
    merges = [_pair(vocabulary, merge) for merge in vocabulary.merges] or _merges_by_score(vocabulary, vocab)
    tokenizer = _build(vocabulary, vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True)
    prefix = vocabulary.flag("add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    _add_specials(tokenizer, vocabulary)
    return tokenizer


def _merges_by_score(vocabulary: _Vocabulary, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two, best score first; ties go to the longer left part."""
    found: list[tuple[float, int, int, int, int, str, str]] = []
    for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True):
        if kind not in (_NORMAL, _USER_DEFINED):
            continue
        for at in range(1, len(token)):
            left, right = vocab.get(token[:at]), vocab.get(token[at:])
            if left is not None and right is not None:
                found.append((-score, -at, at - len(token), left, right, token[:at], token[at:]))
    # Stable: pairs that tie in all three keep the vocabulary's order.
    found.sort(key=lambda pair: pair[:3])
    return [pair[5:] for pair in found]


def _pair(vocabulary: _Vocabulary, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise DamagedTokenizer(f"{vocabulary.where} is corrupt: tokenizer.ggml.merges has {merge!r}")
    return left, right


def _build(
    vocabulary: _Vocabulary, *, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> Tokenizer:
    for left, right in merges:
        # The library panics, past all error handling, over a merge of unknown tokens or into one.
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise DamagedTokenizer(
                f"{vocabulary.where} is corrupt: tokenizer.ggml.merges has {left!r} and {right!r}, "
                "and not both they and what they make are tokens"
            )
    unknown = vocabulary.special("unknown") if vocabulary.model == "llama" else None
    return Tokenizer(BPE(vocab=vocab, merges=merges, unk_token=unknown, **options))


def _add_specials(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Control tokens are matched whole and vanish from decoded text; user-defined ones are matched whole and stay."""
    pairs = list(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
    control = [AddedToken(token, normalized=False, special=True) for token, kind in pairs if kind == _CONTROL]
    defined = [AddedToken(token, normalized=False, special=False) for token, kind in pairs if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(defined)
