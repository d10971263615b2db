"""Where a decoder's graph can be cut: the residual stream between its layers. Found by what nodes do, not by names.

A sum of which one term is computed from the other goes around attention or feed-forward. These sums form a chain: each
one's shorter way is the sum before it, the first one's is the embedding. A layer begins at the last link of the chain
that its key is computed from.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from octavo_edge.quant.topology import Topology

__all__ = ["Border", "CannotSplit", "borders"]


class CannotSplit(ValueError):
    """The graph has no residual stream that passes through all of its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """A tensor of the stream, between two layers.

    ``made`` is what a node makes; where it is quantised, ``integers`` and ``read_as`` are what its Q and DQ make.
    """

    made: str
    integers: str | None = None
    read_as: str

    def renamed(self, name: str, *, behind: bool) -> dict[str, str]:
        """Names for its tensors when it is called ``name``: as an input (``behind`` the border), or as an output."""
        if self.integers is None:
            return {self.made: name}
        if behind:
            return {self.made: name, self.integers: f"{name}_q", self.read_as: f"{name}_dq"}
        return {self.made: f"{name}_raw", self.integers: f"{name}_q", self.read_as: name}


def borders(graph: Topology, num_layers: int) -> list[Border]:
    """``num_layers + 1`` of them: before each layer, and behind the last.

    Raises:
        CannotSplit: There is no such chain of sums, or a layer does not begin on it.
    """
    chain = _chain(graph)
    positions: list[int] = []
    for layer in range(num_layers):
        key = graph.producer.get(f"key_{layer}")
        before = [index for index, name in enumerate(chain) if key is not None and _depends(graph, key, name)]
        if not before:
            raise CannotSplit(f"{graph.path.name}: key_{layer} does not come from the residual stream")
        positions.append(before[-1])
    positions.append(len(chain) - 1)
    if any(left >= right for left, right in itertools.pairwise(positions)):
        raise CannotSplit(f"{graph.path.name}: layers share a place of the residual stream")
    return [_border(graph, chain[position]) for position in positions]


def _chain(graph: Topology) -> list[str]:
    """The embedding's output and every sum on the way to the head."""
    shorter: dict[str, str] = {}  # from a sum's shorter way to the sum
    for node in graph.nodes:
        if node.op_type == "Add":
            left, right = (_made(graph, name) for name in node.input)
            if _computed_from(graph, right, left):
                shorter[left] = node.output[0]
            elif _computed_from(graph, left, right):
                shorter[right] = node.output[0]
    if not shorter:
        raise CannotSplit(f"{graph.path.name}: no sum goes around a layer")
    chain = [next(iter(shorter))]
    while chain[-1] in shorter:
        chain.append(shorter[chain[-1]])
    return chain


def _made(graph: Topology, name: str) -> str:
    """What was quantised, of a dequantised tensor; any other is itself."""
    for op in ("DequantizeLinear", "QuantizeLinear"):
        index = graph.producer.get(name)
        if index is None or graph.nodes[index].op_type != op:
            return name
        name = graph.nodes[index].input[0]
    return name


def _computed_from(graph: Topology, name: str, other: str) -> bool:
    index = graph.producer.get(name)
    return index is not None and _depends(graph, index, other)


def _depends(graph: Topology, node: int, name: str) -> bool:
    made = graph.producer.get(name)
    return made is not None and bool(graph.ancestors[node] >> made & 1)


def _border(graph: Topology, made: str) -> Border:
    readers = [graph.nodes[index] for index in graph.readers.get(made, [])]
    if len(readers) != 1 or readers[0].op_type != "QuantizeLinear":
        return Border(made=made, read_as=made)
    integers = readers[0].output[0]
    (back,) = (graph.nodes[index] for index in graph.readers[integers])
    return Border(made=made, integers=integers, read_as=back.output[0])
