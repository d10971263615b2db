"""The numbers of a model that its size and its cost follow from. Knows no weights and no files.

Letters in the formulae here and in the modules beside: L layers, H hidden size, N query heads, K key-value heads,
D head dim, I intermediate size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of the Llama kind: grouped-query attention, a gated feed-forward layer, RMS norms."""

    name: str
    # For example llama or qwen2; only told.
    family: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    # The head is the embedding: stored once.
    tie_embeddings: bool = False
    # Biases of q, k and v; of o; of the feed-forward layer's three.
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    # A norm over each head's q and k (Qwen3).
    qk_norm: bool = False
    # Longest sequence that the model is for.
    context_length: int
    # A token looks at so many tokens at most, itself included (Mistral); None looks at all.
    sliding_window: int | None = None
    # So many layers do; None is all.
    num_window_layers: int | None = None

    @property
    def window_layers(self) -> int:
        """Layers in which a token looks no further than the window."""
        if self.sliding_window is None:
            return 0
        return self.num_layers if self.num_window_layers is None else self.num_window_layers

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of one layer that multiply a token: ``2 H N D + 2 H K D + 3 H I``."""
        attention = (
            2 * self.hidden * self.num_heads * self.head_dim + 2 * self.hidden * self.num_kv_heads * self.head_dim
        )
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer_vector_parameters(self) -> int:
        """Norms and biases of one layer."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.qkv_bias else 0
        mlp = 2 * self.intermediate + self.hidden if self.mlp_bias else 0
        return norms + qkv + (self.hidden if self.output_bias else 0) + mlp

    @property
    def layer_rows(self) -> int:
        """Outputs of one layer's matrices: formats with a scale for each output store so many scales."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + 2 * self.hidden + 2 * self.intermediate

    @property
    def matrix_parameters(self) -> int:
        """Weights of all layers' matrices, ``L`` times one layer's."""
        return self.num_layers * self.layer_matrix_parameters

    @property
    def vector_parameters(self) -> int:
        """Norms and biases of all layers, and the last norm."""
        return self.num_layers * self.layer_vector_parameters + self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output head, ``V H``; the embedding has as many."""
        return self.vocab_size * self.hidden

    @property
    def num_parameters(self) -> int:
        """All weights; a tied head counts once."""
        tables = self.head_parameters * (1 if self.tie_embeddings else 2)
        return self.matrix_parameters + self.vector_parameters + tables

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelShape:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})
