"""A loaded model of transformers as an adapted decoder, in the same memory. Knows no files."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from octavo_edge.models.config import AttentionForm
from octavo_edge.models.conv import convs_of
from octavo_edge.models.decoder import AdaptedDecoder
from octavo_edge.models.families import adapted_config

__all__ = ["adapt_model"]

_HEAD = "lm_head.weight"


def adapt_model(model: PreTrainedModel, *, attention: AttentionForm) -> AdaptedDecoder:
    """The decoder with the model's weights, its linear layers as convolutions; heads are not split yet.

    Raises:
        UnsupportedModel: The model has what the decoder has not.
    """
    decoder = AdaptedDecoder(adapted_config(model, attention=attention))
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    tensors: dict[str, Tensor] = {}
    for name, conv in convs_of(linears).items():
        tensors |= {f"{_ours(name)}.{part}": parameter for part, parameter in conv.named_parameters()}
    for name, parameter in model.named_parameters():
        tensors.setdefault(_ours(name), parameter.detach())
    decoder.assign(
        {name: tensor for name, tensor in tensors.items() if name != _HEAD or not decoder.config.tied_embeddings}
    )
    return decoder


def _ours(name: str) -> str:
    return name.removeprefix("model.")
