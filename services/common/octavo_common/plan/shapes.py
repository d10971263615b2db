"""Shapes of well-known models by name, as their published config.json files give them. Values only."""

from __future__ import annotations

from octavo_common.plan.shape import ModelShape


def _llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv: int,
    intermediate: int,
    *,
    vocab: int,
    context: int,
    tie: bool = False,
) -> ModelShape:
    return ModelShape(
        name=name,
        family="llama",
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab_size=vocab,
        context_length=context,
        tie_embeddings=tie,
    )


def _qwen(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv: int,
    intermediate: int,
    *,
    vocab: int,
    head_dim: int,
    tie: bool = False,
) -> ModelShape:
    is_third = name.startswith("qwen3")
    return ModelShape(
        name=name,
        family="qwen3" if is_third else "qwen2",
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab_size=vocab,
        context_length=40960 if is_third else 32768,
        tie_embeddings=tie,
        qkv_bias=not is_third,
        qk_norm=is_third,
    )


_LLAMA_3, _LLAMA_2 = 128256, 32000

SHAPES = {
    shape.name: shape
    for shape in (
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, vocab=49152, context=8192, tie=True),
        _llama("smollm2-360m", 32, 960, 15, 5, 2560, vocab=49152, context=8192, tie=True),
        _llama("smollm2-1.7b", 24, 2048, 32, 32, 8192, vocab=49152, context=8192, tie=True),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, vocab=_LLAMA_2, context=4096),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, vocab=_LLAMA_2, context=4096),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, vocab=_LLAMA_3, context=8192),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, vocab=_LLAMA_3, context=8192),
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, vocab=_LLAMA_3, context=131072),
        _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, vocab=_LLAMA_3, context=131072),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, vocab=_LLAMA_3, context=131072),
        _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, vocab=_LLAMA_3, context=131072, tie=True),
        _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, vocab=_LLAMA_3, context=131072, tie=True),
        _qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4864, vocab=151936, head_dim=64, tie=True),
        _qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, vocab=151936, head_dim=128, tie=True),
        _qwen("qwen2.5-7b", 28, 3584, 28, 4, 18944, vocab=152064, head_dim=128),
        _qwen("qwen2.5-32b", 64, 5120, 40, 8, 27648, vocab=152064, head_dim=128),
        _qwen("qwen2.5-72b", 80, 8192, 64, 8, 29568, vocab=152064, head_dim=128),
        _qwen("qwen3-0.6b", 28, 1024, 16, 8, 3072, vocab=151936, head_dim=128, tie=True),
        _qwen("qwen3-8b", 36, 4096, 32, 8, 12288, vocab=151936, head_dim=128),
        _qwen("qwen3-32b", 64, 5120, 64, 8, 25600, vocab=151936, head_dim=128),
        ModelShape(
            name="mistral-7b",
            family="mistral",
            num_layers=32,
            hidden=4096,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            intermediate=14336,
            vocab_size=_LLAMA_2,
            context_length=32768,
            sliding_window=4096,
        ),
    )
}
