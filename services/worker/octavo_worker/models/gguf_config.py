"""Reads a model's numbers out of a GGUF file's metadata, in llama.cpp's names, and checks them.

Knows nothing of weights, but for the few tensors whose presence or values are numbers of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType

from octavo_common.text.gguf import eos_ids
from octavo_worker.models.base import InvalidModel, ModelConfig, RopeConfig
from octavo_worker.models.config import check, effective_windows
from octavo_worker.models.families import GGUF_FAMILIES, Family
from octavo_worker.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from octavo_worker.models.gguf import GgufFile
from octavo_worker.models.gguf_checkpoint import decode
from octavo_worker.models.rope_config import make_rope

ROPE_FREQUENCIES = "rope_freqs.weight"


def gguf_config(file: GgufFile) -> ModelConfig:
    """The model's numbers; raises InvalidModel for other architectures and for what is missing or absurd."""
    where, metadata = str(file.path), file.metadata
    family = _family(file)
    if metadata.get("split.count", 1) not in (0, 1):
        raise InvalidModel(
            f"{where}: the file is one of several parts, which is not supported",
            hint="join the parts with `llama-gguf-split --merge`",
        )
    prefix = f"{family.gguf}."
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, where)
    if fields.get("expert_count"):
        raise InvalidModel(f"{where}: mixtures of experts are not supported")
    heads, hidden = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads if heads <= hidden else None)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise InvalidModel(f"{where}: keys and values of different lengths are not supported")
    context = fields.integer("context_length", high=MAX_CONTEXT)
    num_layers = fields.integer("block_count", high=MAX_LAYERS)
    config = ModelConfig(
        family=family.name,
        num_layers=num_layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(file),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=_rope(file, fields, head_dim, context),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias=_bias(file, family.qkv_bias, "attn_q"),
        out_bias=_bias(file, family.out_bias, "attn_output"),
        mlp_bias=_bias(file, family.mlp_bias, "ffn_up"),
        head_norms=family.head_norms,
        windows=effective_windows((_window(fields),) * num_layers, context),
        context_length=context,
        bos_id=_token_id(metadata, "bos_token_id"),
        eos_ids=eos_ids(metadata),
    )
    check(config, where)
    return config


def _family(file: GgufFile) -> Family:
    architecture = file.metadata.get("general.architecture")
    family = GGUF_FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise InvalidModel(
            f"{file.path}: general.architecture is {architecture!r}, which is not supported",
            hint=f"supported: {', '.join(sorted(GGUF_FAMILIES))}",
        )
    return family


def _bias(file: GgufFile, fixed: bool | None, name: str) -> bool:
    """What the family says, or else whether the first layer has one."""
    return f"blk.0.{name}.bias" in file.tensors if fixed is None else fixed


def _window(fields: Fields) -> int | None:
    """The window of all layers, which Mistral's files may carry; 0 is none."""
    if fields.get("attention.sliding_window_pattern") is not None:
        raise InvalidModel(
            f"{fields.where}: attention.sliding_window_pattern is there, and windows in some layers are not supported",
            hint="supported: attention.sliding_window for all layers",
        )
    return fields.integer("attention.sliding_window", 0, low=0, high=MAX_CONTEXT) or None


def _token_id(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _vocab_size(file: GgufFile) -> int:
    """The embedding's rows; the metadata's number, where there is one, counts tokens without padding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InvalidModel(f"{file.path}: the tensor token_embd.weight is missing or no matrix")
    return embedding.shape[0]


def _rope(file: GgufFile, fields: Fields, head_dim: int, context: int) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10_000.0)
    dim = fields.integer("rope.dimension_count", head_dim)
    if ROPE_FREQUENCIES in file.tensors:
        return RopeConfig(theta=theta, kind="divisors", dim=dim, divisors=_divisors(file, dim))
    kind = fields.get("rope.scaling.type") or "none"
    amplitude = None
    if kind == "yarn" and fields.get("rope.scaling.attn_factor") is not None:
        # llama.cpp multiplies the usual amplitude by this number; Hugging Face's attention_factor replaces it.
        growth = max(fields.number("rope.scaling.factor"), 1.0)
        amplitude = fields.number("rope.scaling.attn_factor") * (0.1 * math.log(growth) + 1.0)
    scaling = Fields(
        {
            "factor": fields.get("rope.scaling.factor"),
            "original_max_position_embeddings": fields.get("rope.scaling.original_context_length"),
            "attention_factor": amplitude,
            "beta_fast": fields.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": fields.get("rope.scaling.yarn_beta_slow"),
        },
        fields.where,
    )
    name = "default" if kind == "none" else str(kind)
    return make_rope(name, scaling, theta=theta, dim=dim, context_length=context)


def _divisors(file: GgufFile, dim: int) -> tuple[float, ...]:
    """What Llama 3.1 and later files divide the frequencies by, one number a pair."""
    tensor = file.tensors[ROPE_FREQUENCIES]
    if tensor.kind is not GGMLQuantizationType.F32 or tensor.shape != (dim // 2,):
        raise InvalidModel(f"{file.path}: the tensor {ROPE_FREQUENCIES} must be F32 of the shape [{dim // 2}]")
    out = torch.empty(dim // 2)
    with file.path.open("rb") as stream:
        decode(stream, tensor, out)
    if not bool((torch.isfinite(out) & (out > 0)).all()):
        raise InvalidModel(f"{file.path}: the tensor {ROPE_FREQUENCIES} has values that are not positive numbers")
    return tuple(out.tolist())
