"""A model's shape out of what its files say: the values of config.json, or a GGUF head. Pure; opens nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_common.errors import FailedPrecondition
from octavo_common.plan.formats import WEIGHT_FORMATS, Arithmetic, WeightBytes, WeightFormat
from octavo_common.plan.shape import ModelShape
from octavo_common.plan.silent import FULL_LAYERS, SILENT, WINDOW

# Hugging Face's model_type, and general.architecture of GGUF files.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MOST = 1 << 28


class UnreadableModel(FailedPrecondition):
    """The files say nothing that a shape could be made of."""

    code = "INVALID_MODEL"


class _Numbers:
    """Whole numbers of a file, with words for those that are missing."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def get(self, name: str, default: int | None = None) -> int:
        value = self._values.get(self._prefix + name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise UnreadableModel(
                f"{self._where}: {self._prefix}{name} is {value!r}, and must be a whole number above 0",
                hint="models of the Llama, Mistral, Qwen2 and Qwen3 families are planned",
            )
        return value


def config_shape(values: Mapping[str, Any], *, name: str, where: str) -> ModelShape:
    """The shape that a config.json describes; raises UnreadableModel."""
    family = str(values.get("model_type"))
    if family not in FAMILIES:
        raise UnreadableModel(f"{where}: the family {family!r} is not planned", hint=f"planned: {', '.join(FAMILIES)}")
    numbers = _Numbers(values, where)
    heads, hidden = numbers.get("num_attention_heads"), numbers.get("hidden_size")
    has_bias = bool(values.get("attention_bias"))
    silent = SILENT[family]
    shape = ModelShape(
        name=name,
        family=family,
        num_layers=numbers.get("num_hidden_layers"),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=numbers.get("num_key_value_heads", heads),
        head_dim=numbers.get("head_dim", silent.head_dim or max(1, hidden // heads)),
        intermediate=numbers.get("intermediate_size"),
        vocab_size=numbers.get("vocab_size"),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or has_bias,
        output_bias=family in ("llama", "qwen3") and has_bias,
        mlp_bias=family == "llama" and bool(values.get("mlp_bias")),
        qk_norm=family == "qwen3",
        context_length=numbers.get("max_position_embeddings", silent.context_length),
        sliding_window=_window(values, numbers, family),
        num_window_layers=_window_layers(values, family),
    )
    return _sound(shape, where)


def _window(values: Mapping[str, Any], numbers: _Numbers, family: str) -> int | None:
    """Keys that a token sees; Qwen's files must switch the window on, null switches it off, llama has none."""
    slides = family == "mistral" or (family != "llama" and bool(values.get("use_sliding_window")))
    if not slides or ("sliding_window" in values and values["sliding_window"] is None):
        return None
    return numbers.get("sliding_window", WINDOW)


def _window_layers(values: Mapping[str, Any], family: str) -> int | None:
    """Layers with a window: by their kinds, or from which on; None is all."""
    kinds = values.get("layer_types")
    if isinstance(kinds, list):
        return kinds.count("sliding_attention")
    if family not in ("qwen2", "qwen3"):
        return None
    first, layers = values.get("max_window_layers", FULL_LAYERS), values.get("num_hidden_layers")
    return max(0, layers - first) if isinstance(first, int) and isinstance(layers, int) else None


def config_precision(values: Mapping[str, Any]) -> str:
    """The precision that a config.json names for its weights."""
    named = str(values.get("dtype") or values.get("torch_dtype") or "").removeprefix("torch.")
    return named if named in WEIGHT_FORMATS else "bfloat16"


def gguf_shape(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], *, name: str, where: str
) -> ModelShape:
    """The shape that a GGUF head describes: its metadata, and its tensors' dims, outermost first."""
    family = str(metadata.get("general.architecture"))
    if family not in FAMILIES or metadata.get(f"{family}.expert_count"):
        what = "a mixture of experts" if family in FAMILIES else f"the architecture {family!r}"
        raise UnreadableModel(f"{where}: {what} is not planned", hint=f"planned: {', '.join(FAMILIES)}")
    numbers = _Numbers(metadata, where, f"{family}.")
    heads, hidden = numbers.get("attention.head_count"), numbers.get("embedding_length")
    table = tensors.get("token_embd.weight", ())
    window = metadata.get(f"{family}.attention.sliding_window")
    shape = ModelShape(
        name=name,
        family=family,
        num_layers=numbers.get("block_count"),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=numbers.get("attention.head_count_kv", heads),
        head_dim=numbers.get("attention.key_length", max(1, hidden // heads)),
        intermediate=numbers.get("feed_forward_length"),
        vocab_size=table[0] if len(table) == 2 else numbers.get("vocab_size"),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        context_length=numbers.get("context_length"),
        sliding_window=numbers.get("attention.sliding_window") if window else None,
    )
    counted = sum(math.prod(dims) for tensor, dims in tensors.items() if tensor != "rope_freqs.weight")
    if counted != shape.num_parameters:
        raise UnreadableModel(
            f"{where}: the file has {counted} weights, and a model of its numbers would have {shape.num_parameters}",
            hint="it may be one of several parts, or of a kind that is not planned",
        )
    return _sound(shape, where)


def stored_weights(
    sizes: Mapping[str, int], shape: ModelShape, kinds: Sequence[str]
) -> tuple[WeightBytes, WeightFormat]:
    """Bytes of a GGUF file's tensors as they lie, and the format that they amount to. ``kinds``: most bytes first."""
    embedding = sizes.get("token_embd.weight", 0)
    head = sizes.get("output.weight", embedding)
    tables = embedding if shape.tie_embeddings else embedding + head
    layers = sum(sizes.values()) - tables
    stored = WeightFormat(
        name=f"stored ({kinds[0]})" if kinds else "stored",
        summary="as the file has them",
        matrix_bytes=layers / shape.matrix_parameters,
        table_bytes=head / shape.head_parameters,
        vector_bytes=4,
        arithmetic=Arithmetic.FLOAT32 if kinds[:1] == ["F32"] else Arithmetic.BFLOAT16,
    )
    return WeightBytes(layers=layers, embedding=0 if shape.tie_embeddings else embedding, head=head), stored


def _sound(shape: ModelShape, where: str) -> ModelShape:
    if shape.num_heads % shape.num_kv_heads:
        raise UnreadableModel(
            f"{where}: {shape.num_heads} attention heads cannot share {shape.num_kv_heads} key-value heads"
        )
    return shape
