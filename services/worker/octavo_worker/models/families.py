"""The model families, each as what sets it apart from the plain decoder and as the names that files give it.

Knows nothing of weights and of the forward pass: a family ends where a ModelConfig begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo_common.plan import silent
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields

Windows = tuple[int | None, ...]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def no_windows(fields: Fields, num_layers: int) -> Windows:
    """All layers see everything, whatever a file of this family says about windows (Hugging Face's Llama)."""
    return (None,) * num_layers


def one_window(fields: Fields, num_layers: int) -> Windows:
    """All layers have the file's ``sliding_window``; null is none (Hugging Face's Mistral)."""
    window = None
    if fields.get("sliding_window") is not None or not fields.has("sliding_window"):
        window = fields.integer("sliding_window", silent.WINDOW, high=MAX_CONTEXT)
    told = _layer_types(fields, num_layers)
    expected = _FULL if window is None else _SLIDING
    if told is not None and set(told) != {expected}:
        raise InvalidModel(
            f"{fields.where}: layer_types mixes layers, which a model of this architecture does not have",
            hint=f"supported: {expected} for each layer, or no layer_types",
        )
    return (window,) * num_layers


def window_of_upper_layers(fields: Fields, num_layers: int) -> Windows:
    """With ``use_sliding_window``: the layers of ``layer_types``, or those from ``max_window_layers`` on (Qwen)."""
    window = None
    if fields.flag("use_sliding_window", False) and (
        fields.get("sliding_window") is not None or not fields.has("sliding_window")
    ):
        window = fields.integer("sliding_window", silent.WINDOW, high=MAX_CONTEXT)
    kinds = _layer_types(fields, num_layers)
    if kinds is None:
        num_full = fields.integer("max_window_layers", silent.FULL_LAYERS, low=0, high=MAX_LAYERS)
        return tuple(None if index < num_full else window for index in range(num_layers))
    if window is None and _SLIDING in kinds:
        raise InvalidModel(
            f"{fields.where}: layer_types has {_SLIDING}, and use_sliding_window and sliding_window name no window"
        )
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _layer_types(fields: Fields, num_layers: int) -> list[str] | None:
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise InvalidModel(f"{fields.where}: layer_types must be a list with an entry for each of {num_layers} layers")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise InvalidModel(
                f"{fields.where}: layer_types has {kind!r}, which is not supported",
                hint=f"supported: {_FULL}, {_SLIDING}",
            )
    return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family has that the plain decoder has not. For biases None means that the file says so itself."""

    name: str
    architecture: str
    """Under ``architectures`` in config.json."""
    gguf: str | None
    """Under ``general.architecture`` in GGUF; None when such files go by another family's name."""
    gguf_pairs: bool = False
    """Whether GGUF files store the two dims of a rotated pair of q and k side by side."""
    qkv_bias: bool | None = False
    out_bias: bool | None = False
    mlp_bias: bool | None = False
    head_norms: bool = False
    """Whether each head of q and k is normalised before it rotates."""
    windows: Callable[[Fields, int], Windows] = no_windows
    """Reads the window of each layer."""

    @property
    def head_dim(self) -> int | None:
        """Where the file does not say; None: the hidden size divided by the heads."""
        return silent.SILENT[self.name].head_dim

    @property
    def context_length(self) -> int:
        """Where the file does not say."""
        return silent.SILENT[self.name].context_length


LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf="llama",
    gguf_pairs=True,
    qkv_bias=None,
    out_bias=None,
    mlp_bias=None,
)
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    gguf=None,
    windows=one_window,
)
QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf="qwen2",
    qkv_bias=True,
    windows=window_of_upper_layers,
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf="qwen3",
    qkv_bias=None,
    out_bias=None,
    head_norms=True,
    windows=window_of_upper_layers,
)

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3)
GGUF_FAMILIES = {family.gguf: family for family in FAMILIES if family.gguf is not None}
