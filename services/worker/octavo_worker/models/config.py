"""Reads a model's numbers out of Hugging Face's config.json, and checks that they make sense together.

Knows nothing of weights. Raises InvalidModel with the file's name for whatever is missing, absurd or unsupported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo_worker.models.base import InvalidModel, ModelConfig, RopeConfig
from octavo_worker.models.families import FAMILIES, Family, Windows
from octavo_worker.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from octavo_worker.models.rope_config import read_rope


def read_config(directory: Path) -> ModelConfig:
    """Parse ``config.json`` of a model directory; raises InvalidModel."""
    file = directory / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidModel(f"{directory} has no config.json", hint="give a model's directory or a GGUF file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InvalidModel(f"{file} is not a JSON object")
    return parse_config(values, str(file))


def parse_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    """The config of the values in a config.json; raises InvalidModel."""
    fields = Fields(values, where)
    family = _family(values, where)
    _check_supported(fields, family)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", family.head_dim or (hidden // heads if heads <= hidden else None))
    context = fields.integer("max_position_embeddings", family.context_length, high=MAX_CONTEXT)
    rope = read_rope(fields, head_dim=head_dim, context_length=context)
    num_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    config = ModelConfig(
        family=family.name,
        num_layers=num_layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=_bias(fields, family.qkv_bias, "attention_bias"),
        out_bias=_bias(fields, family.out_bias, "attention_bias"),
        mlp_bias=_bias(fields, family.mlp_bias, "mlp_bias"),
        head_norms=family.head_norms,
        windows=effective_windows(family.windows(fields, num_layers), _stretched(rope, context)),
        context_length=_stretched(rope, context),
        bos_id=_first(_ids(values.get("bos_token_id"), "bos_token_id", where)),
        eos_ids=_ids(values.get("eos_token_id"), "eos_token_id", where),
    )
    check(config, where)
    return config


def effective_windows(windows: Windows, context_length: int) -> Windows:
    """The windows that hide something within the context; empty when none does."""
    effective = tuple(w if w is not None and w < context_length else None for w in windows)
    return effective if any(effective) else ()


def check(config: ModelConfig, where: str) -> None:
    """Raise InvalidModel when the numbers contradict each other."""
    if config.num_heads % config.num_kv_heads:
        raise InvalidModel(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads"
        )
    if config.rope.dim > config.head_dim or config.rope.dim % 2 or config.head_dim % 2 or config.rope.dim < 2:
        raise InvalidModel(
            f"{where}: rotary positions over {config.rope.dim} of {config.head_dim} head dims; both must be even"
        )
    for token in (*config.eos_ids, *(() if config.bos_id is None else (config.bos_id,))):
        if not 0 <= token < config.vocab_size:
            raise InvalidModel(f"{where}: the special token {token} is outside a vocabulary of {config.vocab_size}")


def _family(values: Mapping[str, Any], where: str) -> Family:
    known = {family.architecture: family for family in FAMILIES}
    names = values.get("architectures")
    if not isinstance(names, list) or not names:
        names = [family.architecture for family in FAMILIES if family.name == values.get("model_type")]
    for name in names:
        if name in known:
            return known[name]
    what = f"architectures is {', '.join(map(str, names))}" if names else f"model_type is {values.get('model_type')!r}"
    raise InvalidModel(f"{where}: {what}, which is not supported", hint=f"supported: {', '.join(sorted(known))}")


def _check_supported(fields: Fields, family: Family) -> None:
    """Refuse what the decoder would otherwise pass over without a word."""
    activation = fields.get("hidden_act")
    if activation not in (None, "silu", "swish"):
        raise InvalidModel(
            f"{fields.where}: hidden_act is {activation!r}, which is not supported", hint="supported: silu"
        )
    if fields.get("quantization_config"):
        raise InvalidModel(
            f"{fields.where}: quantization_config is there, and quantised safetensors are not supported",
            hint="use the float checkpoint, or a GGUF file",
        )
    for name, there in (("attention_bias", family.qkv_bias), ("mlp_bias", family.mlp_bias)):
        if there is False and fields.flag(name, False):
            raise InvalidModel(
                f"{fields.where}: {name} is true, and {family.architecture} has no such bias", hint="supported: false"
            )


def _bias(fields: Fields, fixed: bool | None, name: str) -> bool:
    """What the family says, or else the file."""
    return fields.flag(name, False) if fixed is None else fixed


def _stretched(rope: RopeConfig, context_length: int) -> int:
    """The longest sequence that the model is for: ``dynamic`` files name the length before stretching, others after."""
    return int(context_length * float(rope.scaling["factor"] or 1.0)) if rope.kind == "dynamic" else context_length


def _ids(value: Any, name: str, where: str) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in values):
        raise InvalidModel(f"{where}: {name} is {value!r}, and must be a token id or a list of them")
    return tuple(values)


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
