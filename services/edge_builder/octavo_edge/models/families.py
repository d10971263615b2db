"""Which checkpoints the adapted decoder can stand for, and what it takes from their configuration.

Knows Hugging Face's configurations and modules, nothing of files. Everything that is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from octavo_device.spec import RopeSpec
from octavo_edge.models.config import AdaptedConfig, AttentionForm, UnsupportedModel

__all__ = ["FAMILIES", "Family", "adapted_config", "check_supported", "window_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a configuration of one model type means."""

    architecture: str  # the class that checkpoints name
    windows: bool = False  # whether `sliding_window` has an effect: others carry the entry and do not read it
    windows_by_layer: bool = False  # whether `layer_types` says which layers have one


FAMILIES = {
    "llama": Family(architecture="LlamaForCausalLM"),
    "mistral": Family(architecture="MistralForCausalLM", windows=True),
    "qwen2": Family(architecture="Qwen2ForCausalLM", windows=True, windows_by_layer=True),
    "qwen3": Family(architecture="Qwen3ForCausalLM", windows=True, windows_by_layer=True),
}
# Scalings whose frequencies do not depend on the length of the sequence.
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


def check_supported(config: Mapping[str, Any], *, where: str) -> None:
    """Refuse, from a checkpoint's config.json alone, what cannot be adapted.

    Raises:
        UnsupportedModel: Names the architecture, or the entry that is not supported.
    """
    family = config.get("model_type")
    known = FAMILIES.get(str(family))
    names = config.get("architectures") or [family if known is None else known.architecture]
    if known is None or names != [known.architecture]:
        raise UnsupportedModel(
            f"{where}: the architecture {', '.join(map(str, names))} (model type {family}) is not supported",
            hint=f"supported: {', '.join(entry.architecture for entry in FAMILIES.values())}",
        )
    if config.get("quantization_config"):
        raise UnsupportedModel(
            f"{where}: the weights are quantised already (quantization_config)",
            hint="give the checkpoint in float16, bfloat16 or float32",
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{where}: the activation {activation!r} is not supported", hint="supported: silu")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _STATIC_ROPE:
        raise UnsupportedModel(
            f"{where}: rotary positions of the kind {kind!r} are not supported",
            hint=f"supported: {', '.join(sorted(_STATIC_ROPE))}",
        )
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel(f"{where}: heads that rotate in part (partial_rotary_factor) are not supported")


def adapted_config(model: PreTrainedModel, *, attention: AttentionForm) -> AdaptedConfig:
    """The config of the decoder that stands for a loaded model.

    Raises:
        UnsupportedModel: The model has what the decoder has not.
    """
    config = model.config
    layer = model.get_submodule("model.layers.0")
    context_length, window = window_of(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim % 2:
        raise UnsupportedModel(f"heads of the odd size {head_dim} cannot rotate")
    return AdaptedConfig(
        family=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        qkv_bias=_linear(layer, "self_attn.q_proj").bias is not None,
        out_bias=_linear(layer, "self_attn.o_proj").bias is not None,
        mlp_bias=_linear(layer, "mlp.gate_proj").bias is not None,
        head_norms=hasattr(layer.get_submodule("self_attn"), "q_norm"),
        tied_embeddings=_tied(model),
        rope=_rope(model),
        context_length=context_length,
        window=window,
        attention=attention,
    )


def window_of(config: PretrainedConfig) -> tuple[int, int | None]:
    """The longest context that can be built, and the window of all layers.

    A graph has one mask for all layers. Where only some layers have a window, a context within it is built, in which
    no layer loses anything.
    """
    family, limit = FAMILIES[config.model_type], int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None) if family.windows else None
    if window is None:
        return limit, None
    kinds = set(config.layer_types) if family.windows_by_layer else {"sliding_attention"}
    if kinds == {"full_attention"}:
        return limit, None
    if kinds == {"sliding_attention"}:
        return limit, int(window) if window < limit else None
    return min(limit, int(window)), None


def _rope(model: PreTrainedModel) -> RopeSpec:
    """Frequencies as transformers computed them: its rotary module is the one that the weights were trained with."""
    rotary: Any = model.get_submodule("model.rotary_emb")
    if rotary.rope_type not in _STATIC_ROPE:
        raise UnsupportedModel(f"rotary positions of the kind {rotary.rope_type!r} are not supported")
    frequencies = rotary.inv_freq.detach().numpy().astype(np.float32)
    return RopeSpec(
        inverse_frequencies=tuple(float(value) for value in frequencies),
        attention_factor=float(rotary.attention_scaling),
        kind=rotary.rope_type,
    )


def _tied(model: PreTrainedModel) -> bool:
    head, embedding = model.get_submodule("lm_head"), model.get_submodule("model.embed_tokens")
    return head.weight is embedding.weight


def _linear(layer: nn.Module, name: str) -> nn.Linear:
    module = layer.get_submodule(name)
    assert isinstance(module, nn.Linear)
    return module
