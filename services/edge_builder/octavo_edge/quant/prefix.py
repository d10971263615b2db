"""The prefix of a recipe: which tokens it is, their keys and values by the float graph, and the file with them.

The first token of a sequence has activations a thousand times larger than all others, which leave a grid few steps for
these. In the cache, made once in floating point, it never passes the quantised graphs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.bundle import PrefixPlace, PrefixTensor
from octavo_device.feeds import Arrays, Decoding
from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec, graph_file
from octavo_edge.graph.metrics import mean_nll
from octavo_edge.quant.encodings import PerTensor
from octavo_edge.quant.grid import quantise
from octavo_edge.quant.segments import run_by_pieces
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import BOS, PrefixItem, RecipeInvalid

__all__ = [
    "PREFIX_FILE",
    "PrefixGain",
    "check_prefix",
    "count_tokens",
    "make_prefix",
    "read_place",
    "text_of",
    "token_ids",
    "write_prefix",
]

PREFIX_FILE = "prefix.bin"
_PLACE_FILE = "prefix.json"
_ANY = 1 << 32  # beyond every vocabulary


def token_ids(items: Sequence[PrefixItem], tokenizer: Tokenizer, *, vocab_size: int) -> tuple[int, ...]:
    """The tokens that a recipe's prefix names.

    Raises:
        RecipeInvalid: The model has no such token.
    """
    found: list[int] = []
    for index, item in enumerate(items):
        found += _item_ids(item, tokenizer)
        if bad := [token for token in found if token >= vocab_size]:
            told = f"recipe: prefix[{index}] is token {bad[0]}; the model has {vocab_size}, from 0 on"
            raise RecipeInvalid(told, param="prefix")
    return tuple(found)


def count_tokens(items: Sequence[PrefixItem], bundle: TokenizerBundle) -> int:
    """How many tokens a prefix has that has been checked."""
    return len(token_ids(items, Tokenizer(bundle), vocab_size=_ANY)) if items else 0


def check_prefix(
    items: Sequence[PrefixItem],
    bundle: TokenizerBundle,
    *,
    vocab_size: int | None,
    context_length: int,
    ars: Sequence[int],
) -> None:
    """What can be said against a recipe's prefix before anything is made; ``vocab_size`` is None if it is not known.

    Raises:
        RecipeInvalid: The model has no such token, or the largest graph no room for a past of them and one besides.
    """
    ids = token_ids(items, Tokenizer(bundle), vocab_size=_ANY if vocab_size is None else vocab_size)
    _check_room(len(ids), context_length=context_length, ars=ars)


def make_prefix(
    source: Path, spec: GraphSpec, ids: Sequence[int], tokenizer: Tokenizer, on_piece: Callable[[int, int], None]
) -> Prefix:
    """Keys and values of the tokens, by the float graph for most tokens; the empty prefix for none."""
    if not ids:
        return NO_PREFIX
    _check_room(len(ids), context_length=spec.context_length, ars=spec.ars)

    def run(ar: int, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        outputs: Arrays = {}
        run_by_pieces(
            Topology(source / graph_file(ar)),
            [feeds],
            lambda _, name, values: outputs.update({name: values}),
            on_piece,
        )
        return outputs

    decoding = Decoding(spec, run)
    for _ in decoding.calls(ids, ars=spec.ars[:1]):
        pass
    past, arrays = decoding.cache.past(spec.ars[0]), Arrays()
    for layer in range(spec.num_layers):
        arrays[f"key_{layer}"] = np.ascontiguousarray(past[f"past_key_{layer}"][..., : len(ids)])
        arrays[f"value_{layer}"] = np.ascontiguousarray(past[f"past_value_{layer}"][:, :, : len(ids)])
    return Prefix(token_ids=tuple(ids), bos_token_id=_bos_id(tokenizer), arrays=arrays)


def write_prefix(out: Path, prefix: Prefix, tokenizer: Tokenizer, activations: Mapping[str, PerTensor]) -> None:
    """Write the file, with the encodings of the cache's inputs, and what says where things are in it."""
    if not prefix.token_ids:
        return
    tensors: list[PrefixTensor] = []
    with (out / PREFIX_FILE).open("wb") as file:
        for name, values in prefix.arrays.items():
            encoding, stored = activations.get(f"past_{name}"), values.astype(np.float32)
            if encoding is not None:
                stored = quantise(values, encoding.scale, encoding.grid, encoding.zero_point)
            tensors.append(
                PrefixTensor(
                    name=name,
                    offset=file.tell(),
                    shape=values.shape,
                    dtype=stored.dtype.name,
                    scale=None if encoding is None else encoding.scale,
                    zero_point=None if encoding is None else encoding.zero_point,
                )
            )
            file.write(stored.astype(stored.dtype.newbyteorder("<")).tobytes())
    place = PrefixPlace(
        file=PREFIX_FILE,
        token_ids=prefix.token_ids,
        text=text_of(prefix.token_ids, tokenizer),
        tensors=tuple(tensors),
        bos_token_id=prefix.bos_token_id,
    )
    (out / _PLACE_FILE).write_text(json.dumps(asdict(place), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_place(folder: Path) -> PrefixPlace | None:
    """Where a quantised model's prefix is; None if it has none."""
    file = folder / _PLACE_FILE
    return PrefixPlace.from_json(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def text_of(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The tokens' text, special ones by their names."""
    return b"".join(tokenizer.token_bytes(token) for token in ids).decode("utf-8", "replace")


class PrefixGain:
    """What a prefix brings and costs in the float graph: the same texts behind it, and behind nothing."""

    def __init__(self, texts: Sequence[Sequence[int]], residual: Collection[str]) -> None:
        """``residual`` are the sums around attention and feed-forward."""
        self._texts, self._residual = texts, frozenset(residual)
        self._largest = {True: 0.0, False: 0.0}
        self._nll: dict[int, float] = {}

    def see(self, index: int, name: str, values: NDArray[Any], *, behind: bool) -> None:
        """A tensor of a text's call; ``behind`` says of which kind."""
        if name in self._residual:
            self._largest[behind] = max(self._largest[behind], float(np.abs(values).max()))
        elif name == "logits" and not behind:
            self._nll[index] = mean_nll(values[0, :-1], np.array(self._texts[index][1:]))

    def metrics(self) -> dict[str, float]:
        """For a report; the perplexity behind the prefix is the float graph's own."""
        return {
            "largest_residual": self._largest[True],
            "largest_residual_without_prefix": self._largest[False],
            "float_ppl_without_prefix": float(np.exp(np.mean(list(self._nll.values())))),
        }


def _check_room(num_tokens: int, *, context_length: int, ars: Sequence[int]) -> None:
    room = context_length - max(ars) - 1
    if num_tokens > room:
        raise RecipeInvalid(
            f"recipe: prefix has {num_tokens} tokens; a context of {context_length} with a graph for {max(ars)} new "
            f"tokens has room for {max(0, room)}",
            param="prefix",
        )


def _item_ids(item: PrefixItem, tokenizer: Tokenizer) -> list[int]:
    if isinstance(item, int):
        return [item]
    if item != BOS:
        return tokenizer.encode(item, add_special=False)
    bos = _bos_id(tokenizer)
    if bos is None:
        raise RecipeInvalid(
            "recipe: prefix is bos, and the model's tokenizer has no such token",
            hint="name tokens: a list of ids, or of texts as '<|endoftext|>'",
            param="prefix",
        )
    return [bos]


def _bos_id(tokenizer: Tokenizer) -> int | None:
    bos = tokenizer.bundle.bos_token
    return None if bos is None else tokenizer.token_id(bos)
