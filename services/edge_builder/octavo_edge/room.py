"""How much of a disk a build takes, from the model's dimensions alone; refuses what the disk cannot hold.

An estimate that is on the safe side by a tenth or more: sizes of weights are exact, those of graphs and of tool-chains'
files are what was seen. Knows no stage but by name, and reads nothing of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo_common import space
from octavo_edge.models.size import ModelSize
from octavo_edge.recipe import Granularity, Recipe, WeightPrecision

_MARGIN = 1.1
_TOKENIZER_BYTES = 20 << 20  # with the other files that every artifact carries
_GRAPH_BYTES = {"float": 20_000, "quantised": 60_000}  # of a layer in one graph's own file
# In the encodings' files, both together: numbers are written out.
_CHANNEL_BYTES, _FLOAT_BLOCK_BYTES, _INT_BLOCK_BYTES = 60, 50, 14
_NUM_CALLS = 2  # in the test vectors of a graph
_NUM_DERIVED = 4  # calls that each smaller graph is measured by
_BINARY_TIMES = 2  # a target's folder, in sizes of the exported model: its binary, tables and vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What decides the size of a build besides the model."""

    recipe: Recipe
    context_length: int
    ars: tuple[int, ...]
    num_targets: int = 1
    # Of the recipe's prefix, a text of which may have several.
    num_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes of each stage's result by its name, in the order of the build, of what a stage throws away, of ``out``."""

    results: Mapping[str, int]
    scratch: Mapping[str, int]
    delivered: int

    def store_bytes(self, kept: Collection[str]) -> int:
        """The most that the store grows by, if the results of ``kept`` are there."""
        held = most = 0
        for stage, size in self.results.items():
            if stage not in kept:
                held += size
                most = max(most, held + self.scratch.get(stage, 0))
        return most


def needs(size: ModelSize, asked: Asked) -> Needs:
    """The estimate."""
    floats = 4 * (size.num_block_params + size.num_table_params * (1 if size.tied_embeddings else 2))
    graphs = {kind: each * size.num_layers * len(asked.ars) for kind, each in _GRAPH_BYTES.items()}
    quantised = _weights(size, asked.recipe) + graphs["quantised"] + _encodings(size, asked.recipe)
    exported = quantised + _vectors(size, asked)
    compiled = _BINARY_TIMES * exported * asked.num_targets
    results = {
        "adapt": floats + _TOKENIZER_BYTES,
        "optimise": floats + graphs["float"] + _TOKENIZER_BYTES,
        "quantise": quantised + _TOKENIZER_BYTES,
        "export": exported + _TOKENIZER_BYTES,
        "compile": compiled + _TOKENIZER_BYTES,
    }
    scratch = {"quantise": _calibration(size, asked), "compile": exported}
    return Needs(
        results={stage: math.ceil(_MARGIN * count) for stage, count in results.items()},
        scratch={stage: math.ceil(_MARGIN * count) for stage, count in scratch.items()},
        delivered=math.ceil(_MARGIN * (compiled + _TOKENIZER_BYTES)),
    )


def require_room(
    found: Needs,
    *,
    store: Path,
    out: Path,
    kept: Collection[str] = (),
    free_bytes: Callable[[Path], int] = space.free_bytes,
) -> None:
    """Refuse a build before its first stage; stages of ``kept`` have their results in the store already.

    Raises:
        NoSpace: A disk has less room than the build will take; says how much is needed and how much is free.
    """
    asked = [(store, found.store_bytes(kept), "--store"), (out, found.delivered, "--out")]
    if _disk(store) == _disk(out):
        asked = [(store, asked[0][1] + asked[1][1], "--store and --out")]
    for folder, needed, option in asked:
        free = free_bytes(folder)
        if free < needed:
            raise space.NoSpace(
                f"the build takes about {_gigabytes(needed)} GB of the disk of {folder}, "
                f"which has {_gigabytes(free)} GB free",
                hint=f"free {_gigabytes(needed - free)} GB, or choose another disk with {option}; "
                "`python -m octavo_edge store --keep-gb N` removes results of earlier builds",
            )


def _weights(size: ModelSize, recipe: Recipe) -> int:
    precision = recipe.precision
    total = 0
    for outputs, inputs in size.layer_matrices:
        total += size.num_layers * _stored(precision.blocks, outputs, inputs)
    head = _stored(precision.lm_head, size.vocab_size, size.hidden_size)
    table = size.num_table_params * precision.embedding.bits // 8 + 4 * size.vocab_size
    return total + head + table


def _stored(weights: WeightPrecision, outputs: int, inputs: int) -> int:
    bits = outputs * inputs * weights.qtype.bits
    blocks = outputs * inputs // (weights.block_size or inputs)
    return bits // 8 + 4 * (outputs + blocks)


def _encodings(size: ModelSize, recipe: Recipe) -> int:
    blocks, layers = recipe.precision.blocks, size.num_layers
    total = _CHANNEL_BYTES * (layers * sum(outputs for outputs, _ in size.layer_matrices) + 2 * size.vocab_size)
    if blocks.block_size is not None:
        num_blocks = size.num_block_params // blocks.block_size
        total += num_blocks * (_INT_BLOCK_BYTES if blocks.granularity is Granularity.LPBQ else _FLOAT_BLOCK_BYTES)
    return total


def _vectors(size: ModelSize, asked: Asked) -> int:
    """Inputs and outputs of some calls of each graph, in float32."""
    tokens = sum(asked.context_length + 4 * ar for ar in asked.ars)
    logits = sum(4 * ar * size.vocab_size for ar in asked.ars)
    masks = sum(4 * ar * asked.context_length for ar in asked.ars)
    return _NUM_CALLS * (tokens * size.cache_bytes + logits + masks)


def _calibration(size: ModelSize, asked: Asked) -> int:
    """Inputs of the calibration's windows, half of them with a past, and both graphs' outputs for those that judge."""
    ar, context = max(asked.ars), asked.context_length
    num_windows, num_judged = asked.recipe.calibration.num_windows, asked.recipe.evaluation.num_windows
    with_past = -(-num_windows // 2) if context >= 2 * ar else 0
    # A file for each input that is not all zeros: mask and positions always, a past with its empty columns.
    header = 128 * (4 + 2 * size.num_layers)
    plain = 4 * ar * (context + size.head_dim) + header
    past = (context - ar) * size.cache_bytes
    inputs = (2 * num_windows + 2 * num_judged) * plain + with_past * past
    firsts = with_past * (ar * size.cache_bytes + header)
    outputs = 2 * num_judged * (ar * (4 * size.vocab_size + size.cache_bytes) + header)
    smaller = sum(_NUM_DERIVED * ((context - other) * size.cache_bytes + plain) for other in asked.ars if other != ar)
    # Windows without a past have a prefix's columns, and those that judge are run without it too.
    columns = asked.num_prefix_tokens * size.cache_bytes
    prefixed = (2 * num_windows + 2 * num_judged) * columns + (num_judged * plain if columns else 0)
    return inputs + firsts + outputs + smaller + prefixed


def _disk(folder: Path) -> int:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}" if num_bytes >= 5e7 else f"{num_bytes / 1e9:.3f}"
