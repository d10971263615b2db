"""A GGUF file as a Checkpoint: names, shapes and row order as Hugging Face has them.

Knows the llama.cpp conventions; not the container's bytes, and not the metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from torch import Tensor

from octavo_worker.models.base import InvalidModel, ModelConfig
from octavo_worker.models.checkpoint import Shape, StoredBlocks
from octavo_worker.models.families import GGUF_FAMILIES
from octavo_worker.models.gguf import GgufFile, GgufTensor
from octavo_worker.models.gguf_quants import SUPPORTED, dequantize

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Weights decoded at once: the scratch of one piece stays in the cache.
_CHUNK = 1 << 18


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
        self._paired = {}
        if GGUF_FAMILIES[config.family].gguf_pairs:
            self._paired = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
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
        heads = self._paired.get(name.split(".")[-2])
        if heads is not None:
            # llama.cpp stores the two dims of a rotated pair side by side; Hugging Face half a head apart.
            paired = out.view(heads, -1, 2, *out.shape[1:]).transpose(1, 2)
            out.copy_(paired.reshape(out.shape))

    def read_blocks(self, name: str) -> StoredBlocks | None:
        """The bytes of a quantised matrix, rows in Hugging Face's order; None for a tensor of floats."""
        tensor = self._tensors[name]
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        if block == 1 or len(tensor.shape) != 2:
            return None
        rows, columns = tensor.shape
        with self._file.path.open("rb") as stream:
            stream.seek(tensor.offset)
            raw = np.frombuffer(stream.read(rows * columns // block * block_bytes), np.uint8)
        if raw.size != rows * columns // block * block_bytes:
            raise InvalidModel(f"{self.where}: the file ends inside the tensor {tensor.name}")
        blocks_OGB = raw.reshape(rows, columns // block, block_bytes)
        heads = self._paired.get(name.split(".")[-2])
        if heads is not None:
            paired = blocks_OGB.reshape(heads, -1, 2, *blocks_OGB.shape[1:]).swapaxes(1, 2)
            blocks_OGB = paired.reshape(blocks_OGB.shape)
        return StoredBlocks(tensor.kind.name, blocks_OGB)

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
