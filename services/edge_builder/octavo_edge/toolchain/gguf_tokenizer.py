"""A tokenizer as GGUF's metadata. Which of llama.cpp's ways to cut text it has, is found by what it makes of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.gguf import bundle_from_metadata

__all__ = ["tokenizer_metadata"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# Under these names llama.cpp knows different ways to cut; the first that fits is taken.
_BYTE_LEVEL = ("smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "dbrx")
_PROBE = (
    "An octavo's 8 leaves; it's 1,234 or 987654321 pages, WE'LL see. \n\n  def fold(x):\n\t\treturn x ** 2  # ½\r\n"
    "Größe naïve cafe\u0301 東京 한국어 عربي 🙂👩‍👩‍👧   three   spaces\n ... !!! 'tis x_y-z 3.14e-10 CamelCase"
)


def tokenizer_metadata(bundle: TokenizerBundle, *, vocab_size: int, where: Path) -> dict[str, Any]:
    """The entries under `tokenizer.`, for a model whose table has `vocab_size` rows.

    Raises:
        UnsupportedTokenizer: It is no BPE, or cuts text as none of the known ones does.
    """
    document = json.loads(bundle.tokenizer_json)
    model = document["model"]
    if model.get("type") != "BPE":
        raise UnsupportedTokenizer(f"{where}: GGUF has no tokenizer of the kind {model.get('type')!r}")
    ours = Tokenizer.from_str(bundle.tokenizer_json).encode(_PROBE, add_special_tokens=False).ids
    for entries in _candidates(document, bundle, vocab_size):
        built = Tokenizer.from_str(bundle_from_metadata(entries, where=where).tokenizer_json)
        if built.encode(_PROBE, add_special_tokens=False).ids == ours:
            return entries
    raise UnsupportedTokenizer(f"{where}: the tokenizer cuts text as none does that llama.cpp has a name for")


def _candidates(document: dict[str, Any], bundle: TokenizerBundle, vocab_size: int) -> Iterator[dict[str, Any]]:
    model = document["model"]
    tokens, kinds = _tokens(document, vocab_size)
    ids = {token: number for number, token in enumerate(tokens)}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    common: dict[str, Any] = {"tokens": tokens, "token_type": kinds, "add_bos_token": bundle.add_bos}
    special = dict(bundle.special_tokens)
    for name, text in (
        ("bos", bundle.bos_token),
        ("eos", bundle.eos_token),
        ("unknown", special.get("unk_token") or model.get("unk_token")),
        ("padding", special.get("pad_token")),
    ):
        if text in ids:
            common[f"{name}_token_id"] = ids[text]
    others = [number for number in bundle.eos_ids if number != common.get("eos_token_id")]
    if others:
        common["eot_token_id"] = others[0]
    if model.get("byte_fallback"):
        scores = _scores(tokens, merges)
        forms = [{"model": "llama", "scores": scores, "add_space_prefix": prefix} for prefix in (True, False)]
    else:
        forms = [{"model": "gpt2", "pre": name, "merges": merges} for name in _BYTE_LEVEL]
    for form in forms:
        entries = {f"tokenizer.ggml.{key}": value for key, value in (common | form).items()}
        if bundle.chat_template is not None:
            entries["tokenizer.chat_template"] = bundle.chat_template
        yield entries


def _tokens(document: dict[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """Token by id and what each is; ids that no token has are unused ones of their own."""
    texts = {number: token for token, number in document["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, _NORMAL)
    if document["model"].get("byte_fallback"):
        kinds |= {number: _BYTE for number, token in texts.items() if len(token) == 6 and token.startswith("<0x")}
    for added in document.get("added_tokens", []):
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    unknown = document["model"].get("unk_token")
    kinds |= {number: _UNKNOWN for number, token in texts.items() if unknown is not None and token == unknown}
    count = max(vocab_size, max(texts) + 1)
    return (
        [texts.get(number, f"[PAD{number}]") for number in range(count)],
        [kinds.get(number, _UNUSED) for number in range(count)],
    )


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """Earlier merges score higher; what no merge makes is never made of two."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    return [-float(ranks[token]) if token in ranks else -1e9 for token in tokens]
