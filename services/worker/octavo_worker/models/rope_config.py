"""Reads how positions become angles, in both spellings of Hugging Face's configurations. Computes no angle."""

from __future__ import annotations

from octavo_worker.models.base import InvalidModel, RopeConfig
from octavo_worker.models.fields import Fields

_SCALING_NUMBERS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_SCALING_OPTIONS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")


def read_rope(fields: Fields, *, head_dim: int, context_length: int) -> RopeConfig:
    """``rope_parameters`` of transformers 5, or ``rope_theta`` with ``rope_scaling`` before it; raises InvalidModel."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    given, other = fields.get(name) or {}, fields.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise InvalidModel(f"{fields.where}: the rope scaling {name} is {given!r}, and must be an object")
    if other not in ({}, given):
        # Libraries disagree about which one counts, and about the base of the angles then.
        raise InvalidModel(
            f"{fields.where}: rope_parameters and rope_scaling are both there and differ",
            hint="supported: rope_parameters alone, or rope_scaling beside rope_theta",
        )
    nested = [key for key, value in given.items() if isinstance(value, dict)]
    if nested:
        raise InvalidModel(
            f"{fields.where}: {name} has angles of their own for {', '.join(nested)}, which is not supported",
            hint="supported: one object for all layers",
        )
    # Some files keep the length of the training beside the object; then that one counts.
    length = fields.get("original_max_position_embeddings")
    beside = {} if length is None else {"original_max_position_embeddings": length}
    scaling = Fields({**given, **beside}, fields.where)
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    share = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    kind = str(given.get("rope_type") or given.get("type") or "default")
    dim = int(head_dim * min(share, 1.0))
    return make_rope(kind, scaling, theta=theta, dim=dim, context_length=context_length)


def make_rope(kind: str, fields: Fields, *, theta: float, dim: int, context_length: int) -> RopeConfig:
    """A checked scaling from Hugging Face's names; raises InvalidModel for kinds and numbers that we do not know."""
    if kind == "default":
        return RopeConfig(theta=theta, dim=dim)
    if kind not in _SCALING_NUMBERS:
        raise InvalidModel(
            f"{fields.where}: the rope_type {kind!r} of the rope scaling is not supported",
            hint=f"supported: default, {', '.join(_SCALING_NUMBERS)}",
        )
    defaults = {"original_max_position_embeddings": float(context_length)}
    if kind == "yarn" and fields.has("factor"):
        # A null stands for the ratio of the two lengths.
        defaults["factor"] = context_length / fields.number("original_max_position_embeddings", context_length)
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
