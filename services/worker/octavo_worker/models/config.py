"""Reads a model's numbers out of Hugging Face's config.json, and checks that they make sense together.

Knows nothing of weights. Raises InvalidModel with the file's name for whatever is missing, absurd or unsupported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo_worker.models.base import InvalidModel, ModelConfig, RopeConfig

# Far beyond any real model; a number above it is a damaged file, and would ask for absurd memory.
_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1024
_MAX_CONTEXT = 1 << 28

_SCALING_NUMBERS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_SCALING_OPTIONS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")

ARCHITECTURES = {"LlamaForCausalLM": "llama"}


class Fields:
    """Typed look-ups in a mapping that came from a file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self._values.get(name)

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = _MAX_SIZE) -> int:
        """An integer within bounds."""
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidModel(f"{self.where}: {name} is {value!r}, and must be true or false")
        return value


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
    activation = values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise InvalidModel(f"{where}: the activation {activation!r} is not supported, only silu")
    if values.get("quantization_config"):
        raise InvalidModel(
            f"{where}: quantised safetensors are not supported", hint="use the float checkpoint, or a GGUF file"
        )
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden // heads if heads <= hidden else None)
    context = fields.integer("max_position_embeddings", 2048, high=_MAX_CONTEXT)
    rope = _rope(fields, head_dim, context)
    config = ModelConfig(
        family=family,
        num_layers=fields.integer("num_hidden_layers", high=_MAX_LAYERS),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        context_length=_stretched(rope, context),
        bos_id=_first(_ids(values.get("bos_token_id"), "bos_token_id", where)),
        eos_ids=_ids(values.get("eos_token_id"), "eos_token_id", where),
    )
    check(config, where)
    return config


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


def make_rope(kind: str, fields: Fields, *, theta: float, dim: int, context_length: int) -> RopeConfig:
    """A checked scaling from Hugging Face's names; raises InvalidModel for kinds and numbers that we do not know."""
    if kind == "default":
        return RopeConfig(theta=theta, dim=dim)
    if kind not in _SCALING_NUMBERS:
        raise InvalidModel(
            f"{fields.where}: rope scaling {kind!r} is not supported, only default, {', '.join(_SCALING_NUMBERS)}"
        )
    defaults = {"original_max_position_embeddings": float(context_length)}
    scaling: dict[str, float | bool | None] = {
        name: fields.number(name, defaults.get(name)) for name in _SCALING_NUMBERS[kind]
    }
    if kind == "yarn":
        for name in _SCALING_OPTIONS:
            if fields.get(name) is not None:
                scaling[name] = fields.flag(name, True) if name == "truncate" else fields.number(name)
    if kind == "llama3" and scaling["low_freq_factor"] == scaling["high_freq_factor"]:
        raise InvalidModel(f"{fields.where}: low_freq_factor and high_freq_factor of the rope scaling are equal")
    if kind == "dynamic" and dim <= 2:
        raise InvalidModel(f"{fields.where}: dynamic rope scaling needs more than 2 rotated dims")
    return RopeConfig(theta=theta, kind=kind, dim=dim, scaling=scaling, original_length=context_length)


def _family(values: Mapping[str, Any], where: str) -> str:
    names = values.get("architectures")
    if not isinstance(names, list) or not names:
        names = {"llama": ["LlamaForCausalLM"]}.get(str(values.get("model_type")), [])
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    what = ", ".join(map(str, names)) or f"model_type {values.get('model_type')!r}"
    raise InvalidModel(
        f"{where}: the architecture {what} is not supported", hint=f"supported: {', '.join(sorted(ARCHITECTURES))}"
    )


def _rope(fields: Fields, head_dim: int, context_length: int) -> RopeConfig:
    """Both spellings: ``rope_parameters`` of transformers 5, and ``rope_theta`` with ``rope_scaling`` before it."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise InvalidModel(f"{fields.where}: the rope scaling is {given!r}, and must be an object")
    scaling = Fields({**given}, fields.where)
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    share = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    kind = str(given.get("rope_type") or given.get("type") or "default")
    dim = int(head_dim * min(share, 1.0))
    return make_rope(kind, scaling, theta=theta, dim=dim, context_length=context_length)


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
