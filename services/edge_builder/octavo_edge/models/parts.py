"""One part of the adapted decoder in torch, with the interface that the exported part has.

For tool-chains that read no ONNX: its parameters are what the exported integers stand for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo_edge.graph.manifest import Part
from octavo_edge.models.attention import Places
from octavo_edge.models.config import AdaptedConfig
from octavo_edge.models.decoder import AdaptedDecoder
from octavo_edge.models.layers import to_channels, to_rows

__all__ = ["DecoderPart", "decoder_part"]


class DecoderPart(nn.Module):
    """Layers [first, stop), behind the embedding if it takes token ids, before the head if it gives logits."""

    def __init__(
        self, decoder: AdaptedDecoder, *, layers: tuple[int, int], takes_ids: bool, gives_logits: bool
    ) -> None:
        super().__init__()
        self.embed_tokens = decoder.embed_tokens if takes_ids else None
        self.layers = nn.ModuleDict({str(index): decoder.layers[index] for index in range(*layers)})
        self.norm = decoder.norm if gives_logits else None
        self.lm_head = decoder.lm_head if gives_logits else None

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Token ids `[1, A]` or the residual stream `[1, 1, A, H]`, then mask, cos, sin and the past of each layer.

        A part without layers takes nothing but the first. Gives the stream or the logits, then the layers' new keys
        and values in turn.
        """
        if self.embed_tokens is not None:
            x = self.embed_tokens(x).unsqueeze(0)
        new: list[Tensor] = []
        if self.layers:
            mask, cos, sin, *past = rest
            places = Places(cos.transpose(2, 3), sin.transpose(2, 3), mask)
            for index, layer in enumerate(self.layers.values()):
                x, key, value = layer(x, places, past[2 * index], past[2 * index + 1])
                new += [key, value]
        if self.norm is not None and self.lm_head is not None:
            x = to_rows(self.lm_head(to_channels(self.norm(x)))).squeeze(0)
        return (x, *new)


def decoder_part(config: AdaptedConfig, part: Part, parameters: Mapping[str, Tensor]) -> DecoderPart:
    """The part with these parameters; a bias that is not among them is zero, as the exporter drops those."""
    decoder = AdaptedDecoder(config)
    if config.attention == "sha":
        decoder.split_heads()
    graph = part.graphs[0]
    module = DecoderPart(
        decoder,
        layers=part.layers,
        takes_ids=graph.inputs[0].name == "input_ids",
        gives_logits=graph.outputs[0].name == "logits",
    )
    wanted = module.state_dict()
    tensors = {
        name: parameters[name] if name in parameters or not name.endswith(".bias") else torch.zeros(tensor.shape)
        for name, tensor in wanted.items()
    }
    module.load_state_dict(tensors, strict=True, assign=True)
    return module.requires_grad_(False).eval()
