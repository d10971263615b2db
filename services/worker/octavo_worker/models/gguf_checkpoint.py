"""A GGUF file of a Llama model as a Checkpoint: names, shapes and row order as Hugging Face has them.

Also reads the model's configuration out of the metadata. Knows the llama.cpp conventions; not the container's bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from octavo_worker.models.base import InvalidModel, ModelConfig, RopeConfig
from octavo_worker.models.checkpoint import Shape
from octavo_worker.models.config import Fields, check, make_rope
from octavo_worker.models.gguf import GgufFile, GgufTensor
from octavo_worker.models.gguf_quants import SUPPORTED, dequantize

ROPE_FREQUENCIES = "rope_freqs.weight"
_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Weights decoded at once: the scratch of one piece stays in the cache.
_CHUNK = 1 << 18


def gguf_config(file: GgufFile) -> ModelConfig:
    """The model's numbers; raises InvalidModel for other architectures and for what is missing or absurd."""
    where, metadata = str(file.path), file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise InvalidModel(f"{where}: the architecture {architecture!r} is not supported", hint="supported: llama")
    if metadata.get("split.count", 1) not in (0, 1):
        raise InvalidModel(
            f"{where}: the file is one of several parts, which is not supported",
            hint="join the parts with `llama-gguf-split --merge`",
        )
    fields = Fields({k.removeprefix("llama."): v for k, v in metadata.items() if k.startswith("llama.")}, where)
    if fields.get("expert_count"):
        raise InvalidModel(f"{where}: mixtures of experts are not supported")
    heads, hidden = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads if heads <= hidden else None)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise InvalidModel(f"{where}: keys and values of different lengths are not supported")
    context = fields.integer("context_length", high=1 << 28)
    config = ModelConfig(
        family="llama",
        num_layers=fields.integer("block_count", high=1024),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(file),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=_rope(file, fields, head_dim, context),
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        context_length=context,
        bos_id=_token_id(metadata, "bos_token_id"),
        eos_ids=eos_ids(metadata),
    )
    check(config, where)
    return config


def eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a generation: end of sequence, of turn and of message, where the file names them."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (_token_id(metadata, name) for name in names)
    return tuple(sorted({token for token in found if token is not None}))


def _token_id(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def quantization(file: GgufFile) -> str:
    """Name of the type of most of the file's bytes."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.kind.name] += tensor.num_bytes
    return sizes.most_common(1)[0][0] if sizes else ""


class GgufCheckpoint:
    """Open weights of a GGUF file."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        """Translate names; raises InvalidModel for tensor types that we cannot decode."""
        self._file = file
        self._config = config
        self._tensors = {_hf_name(name): tensor for name, tensor in file.tensors.items()}
        self._stream: BinaryIO | None = None
        for tensor in file.tensors.values():
            if tensor.kind not in SUPPORTED:
                known = ", ".join(sorted(kind.name for kind in SUPPORTED))
                raise InvalidModel(
                    f"{file.path}: the tensor {tensor.name} has the type {tensor.kind.name}, which is not supported",
                    hint=f"supported: {known}",
                )

    @property
    def where(self) -> str:
        """The file."""
        return str(self._file.path)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor's shape."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        """Decode a tensor into ``out``, float32 and contiguous."""
        tensor = self._tensors[name]
        if self._stream is None:
            self._stream = self._file.path.open("rb")
        decode(self._stream, tensor, out)
        heads = {"q_proj": self._config.num_heads, "k_proj": self._config.num_kv_heads}.get(name.split(".")[-2])
        if heads is not None:
            # llama.cpp stores the two dims of a rotated pair side by side; Hugging Face half a head apart.
            paired = out.view(heads, -1, 2, *out.shape[1:]).transpose(1, 2)
            out.copy_(paired.reshape(out.shape))

    def __enter__(self) -> GgufCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def decode(stream: BinaryIO, tensor: GgufTensor, out: Tensor) -> None:
    """Decode a tensor as the file has it; ``out`` is float32, contiguous, with as many elements."""
    block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
    values = out.view(-1).numpy()
    raw = np.empty(min(values.size, _CHUNK) // block * block_bytes, dtype=np.uint8)
    stream.seek(tensor.offset)
    for start in range(0, values.size, _CHUNK):
        piece = values[start : start + _CHUNK]
        part = raw[: piece.size // block * block_bytes]
        if stream.readinto(memoryview(part)) != part.size:  # type: ignore[attr-defined]
            raise InvalidModel(f"{stream.name}: the file ends inside the tensor {tensor.name}")
        dequantize(tensor.kind, part, piece)


def _hf_name(name: str) -> str:
    """Hugging Face's name for a tensor; names that it has no word for stay as they are."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return name


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
