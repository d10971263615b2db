"""Running an adapted decoder on numpy inputs by name, and the sequence that its correctness is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.feeds import Decoding, RunGraph
from octavo_device.spec import GraphSpec
from octavo_edge.models.decoder import AdaptedDecoder

__all__ = ["Probe", "TorchModel", "probe_tokens"]

_TEXT = (
    "An octavo is a book whose sheets were folded three times, so that each gave eight leaves. Printers liked it: it "
    "needs 12.5 % less paper than a quarto, costs 1,234 marks a ream, and fits a coat's pocket. Größe ist nicht alles; "
    "東京 is far away.\n\ndef leaves(sheets: int) -> int:\n    return sheets * 2 ** 3  # eight a sheet\n\n"
    "What is the capital of France? It is Paris, on the river Seine, and that of Japan is Tokyo. "
)
_CHUNK, _NUM_DECODED = 64, 8


class TorchModel:
    """The decoder as one that takes numpy inputs and gives outputs by name. Fits `RunGraph`."""

    def __init__(self, decoder: AdaptedDecoder, spec: GraphSpec) -> None:
        self.spec = spec
        self._decoder = decoder

    def __call__(self, ar: int, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run on `ar` new tokens."""
        ids, mask, cos, sin, *past = (torch.from_numpy(feeds[tensor.name]) for tensor in self.spec.inputs(ar))
        with torch.inference_mode():
            values = self._decoder(ids, mask, cos, sin, past)
        names = (tensor.name for tensor in self.spec.outputs(ar))
        return {name: value.numpy() for name, value in zip(names, values, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Lengths of what a sequence is fed in: a chunk, a second one that has a past, then token by token."""

    chunk: int
    num_tokens: int

    @classmethod
    def within(cls, context_length: int) -> Probe:
        """As long as is useful and as the context allows."""
        chunk = max(1, min(_CHUNK, (context_length - _NUM_DECODED) // 2))
        return cls(chunk=chunk, num_tokens=min(context_length, 2 * chunk + _NUM_DECODED))

    @property
    def ars(self) -> tuple[int, ...]:
        """Graphs that it needs."""
        return (self.chunk, 1) if self.chunk > 1 else (1,)

    def logits(self, spec: GraphSpec, run: RunGraph, tokens: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """Logits `[tokens, V]` of each part; a part that the context has no room for is left out."""
        decoding, found = Decoding(spec, run), {}
        for name, part in self.parts().items():
            if piece := tokens[part]:
                found[name] = decoding.logits(piece, ars=(1,) if name == "decode" else (self.chunk,))
        return found

    def parts(self) -> dict[str, slice]:
        """Which tokens each part has."""
        chunk = self.chunk
        return {
            "first_chunk": slice(0, chunk),
            "second_chunk": slice(chunk, 2 * chunk),
            "decode": slice(2 * chunk, self.num_tokens),
        }


def probe_tokens(bundle: TokenizerBundle, num_tokens: int, *, vocab_size: int) -> list[int]:
    """So many tokens of real text.

    Raises:
        UnsupportedTokenizer: The tokenizer has ids that the model has not.
    """
    text = list(Tokenizer(bundle).encode(_TEXT))
    if max(text) >= vocab_size:
        raise UnsupportedTokenizer(
            f"the tokenizer gives token {max(text)}, and the model's vocabulary ends at {vocab_size - 1}"
        )
    return (text * (num_tokens // len(text) + 1))[:num_tokens]
