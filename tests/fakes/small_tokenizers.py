"""Small tokenizers of every supported kind, trained here on a few sentences."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HfTokenizer

from octavo_common.text.bundle import TokenizerBundle

CORPUS = [
    "The quick brown fox jumps over the lazy dog. STOP and STOPPING are words; so is stop.",
    "Zażółć gęślą jaźń. Größe, naïve café, Ελληνικά, русский текст, 你好世界, こんにちは, 🙂🙃👩‍👩‍👧.",
    "def main():\n    return 'hello'\n\n\tprint(1 + 1)  # ok",
] * 4
SPECIAL = ["<s>", "</s>", "<unk>"]


def trained_once(train: Callable[[], HfTokenizer]) -> Callable[[], HfTokenizer]:
    """Training does not give the same vocabulary twice: do it once, and give out copies."""

    @functools.cache
    def text() -> str:
        return train().to_str()

    return lambda: HfTokenizer.from_str(text())


@trained_once
def byte_level_tokenizer() -> HfTokenizer:
    """Like GPT-2, Llama 3 or Qwen: tokens are bytes, so characters are split between tokens."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("two words é", special=False)])
    return tokenizer


@trained_once
def byte_fallback_tokenizer() -> HfTokenizer:
    """Like Llama 2 or Mistral: pieces with a mark for the space, and a token per byte for what has no piece."""
    trained = HfTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL + byte_tokens, limit_alphabet=60, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    # In the models that are served, byte tokens are part of the vocabulary and no special tokens.
    value = json.loads(trained.to_str())
    value["added_tokens"] = [t for t in value["added_tokens"] if t["content"] in SPECIAL]
    tokenizer = HfTokenizer.from_str(json.dumps(value))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def metaspace_tokenizer() -> HfTokenizer:
    """Like T5 and newer Llama 2 conversions: the mark is dropped from the first token only."""
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


MAKERS = {
    "byte_level": byte_level_tokenizer,
    "byte_fallback": byte_fallback_tokenizer,
    "metaspace": metaspace_tokenizer,
}


def bundle_of(tokenizer: HfTokenizer, **fields: object) -> TokenizerBundle:
    return TokenizerBundle(tokenizer_json=tokenizer.to_str(), bos_token="<s>", eos_token="</s>", eos_ids=(1,), **fields)
