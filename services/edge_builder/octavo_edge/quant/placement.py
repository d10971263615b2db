"""Which tensors get quantisers, which of them share one, and which constants are weights. Knows no numbers.

Left in floating point: the inside of every RMSNorm (squares of an activation of 24000 leave no grid a step for ordinary
tokens), and the residual stream if asked for. Tensors that a node only moves share the encoding of what it moved, so
that moving needs no arithmetic; through the Concat of past and new tokens that ties what comes in of a cache to what
goes out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo_edge.quant.topology import MOVEMENT, Topology


class Role(StrEnum):
    """What an activation is, as far as quantisers care."""

    PLAIN = "plain"
    RESIDUAL = "residual"  # sums whose one term came by way of the other: never clipped
    CACHE = "cache"  # keys and values of past and new tokens
    EMBEDDING = "embedding"  # rows of the table: their range is the table's, not that of the tokens seen


class WeightKind(StrEnum):
    """Which part of the model a weight is."""

    BLOCK = "block"
    HEAD = "head"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors that share one encoding."""

    tensors: tuple[str, ...]
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A constant that a node multiplies its input by, or looks rows up in."""

    name: str
    node: int
    source: str  # the tensor that it multiplies; the indices of a lookup
    kind: WeightKind
    # Dimension of the output channels: 0 for Conv and tables, 1 for MatMul.
    channel_axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Everything of a graph that is quantised."""

    groups: tuple[Group, ...]
    weights: tuple[Weight, ...]
    constants: tuple[str, ...]  # float constants besides the weights: factors, norm weights
    floats: frozenset[str]  # tensors that stay as they are


def place(graph: Topology, *, float_residual: bool = False) -> Placement:
    """Decide for a decoder's graph (or any other) where its quantisers go."""
    weights = _weights(graph)
    residual = _residual_sums(graph)
    floats = _norm_interior(graph)
    if float_residual:
        floats |= residual
    parents: dict[str, str] = {}
    observed = [name for name in (*graph.inputs, *graph.producer) if name and _observed(graph, name)]
    for name in observed:
        parents[name] = name
    for index, node in enumerate(graph.nodes):
        if node.op_type in MOVEMENT and _moves_data(graph, index):
            moved = list(node.input) if node.op_type == "Concat" else [node.input[0]]
            tied = [name for name in (*moved, *node.output) if name in parents]
            for name in tied[1:]:
                parents[_root(parents, name)] = _root(parents, tied[0])
    members: dict[str, list[str]] = {}
    for name in observed:
        members.setdefault(_root(parents, name), []).append(name)
    tables = {graph.nodes[w.node].output[0] for w in weights if w.kind is WeightKind.EMBEDDING}
    groups: list[Group] = []
    for tensors in members.values():
        if any(name in floats for name in tensors):
            floats |= set(tensors)
        else:
            groups.append(Group(tensors=tuple(tensors), role=_role(tensors, residual, tables)))
    taken = {weight.name for weight in weights}
    constants = tuple(
        name for name in graph.constants if name not in taken and _quantised_constant(graph, name, floats)
    )
    return Placement(groups=tuple(groups), weights=weights, constants=constants, floats=frozenset(floats))


def _observed(graph: Topology, name: str) -> bool:
    made = graph.producer.get(name)
    if made is not None and graph.nodes[made].op_type in ("Constant", "ConstantOfShape"):
        return False
    return graph.is_float(name)


def _moves_data(graph: Topology, index: int) -> bool:
    node = graph.nodes[index]
    return node.op_type != "Gather" or node.input[0] not in graph.constants


def _root(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = parents[parents[name]]
        name = parents[name]
    return name


def _role(tensors: list[str], residual: set[str], tables: set[str]) -> Role:
    if any(name.startswith(("past_key_", "past_value_")) for name in tensors):
        return Role.CACHE
    if any(name in residual for name in tensors):
        return Role.RESIDUAL
    return Role.EMBEDDING if any(name in tables for name in tensors) else Role.PLAIN


def _weights(graph: Topology) -> tuple[Weight, ...]:
    heads = _head_nodes(graph)
    found: list[Weight] = []
    for index, node in enumerate(graph.nodes):
        if node.op_type == "Gather" and node.input[0] in graph.constants and graph.is_float(node.input[0]):
            if len(graph.constants[node.input[0]].dims) == 2:
                kind = WeightKind.EMBEDDING
                found.append(Weight(name=node.input[0], node=index, source=node.input[1], kind=kind, channel_axis=0))
        elif node.op_type in ("Conv", "MatMul") and len(node.input) > 1 and node.input[1] in graph.constants:
            if not graph.is_float(node.input[1]):
                continue
            kind = WeightKind.HEAD if index in heads else WeightKind.BLOCK
            axis = 0 if node.op_type == "Conv" else 1
            found.append(Weight(name=node.input[1], node=index, source=node.input[0], kind=kind, channel_axis=axis))
    return tuple(found)


def _head_nodes(graph: Topology) -> set[int]:
    """The node that makes the logits, up to moves."""
    name = "logits" if "logits" in graph.outputs else None
    while name is not None and (index := graph.producer.get(name)) is not None:
        if graph.nodes[index].op_type not in MOVEMENT:
            return {index}
        name = graph.nodes[index].input[0]
    return set()


def _residual_sums(graph: Topology) -> set[str]:
    """Outputs of sums of which one term is computed from the other: the ways around attention and MLP."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op_type != "Add":
            continue
        left, right = (graph.producer.get(name) for name in node.input)
        if left is None or right is None:
            continue
        if graph.ancestors[left] >> right & 1 or graph.ancestors[right] >> left & 1:
            found.add(node.output[0])
    return found


def _norm_interior(graph: Topology) -> set[str]:
    """What lies between the input of an RMSNorm and its normalised value, that included, the weight excluded."""
    found: set[str] = set()
    for index, node in enumerate(graph.nodes):
        if node.op_type != "ReduceMean":
            continue
        square = graph.producer.get(node.input[0])
        if square is None or not _is_square(graph, square):
            continue
        inside = [square, index, *_root_chain(graph, node.output[0])]
        found.update(name for i in inside for name in graph.nodes[i].output)
        # x / 128 before it is squared, where the graph is made for float16.
        before = graph.producer.get(graph.nodes[square].input[0])
        if before is not None and _is_scaling(graph, before):
            found.update(graph.nodes[before].output)
    return found


def _is_square(graph: Topology, index: int) -> bool:
    node = graph.nodes[index]
    if node.op_type == "Mul":
        return node.input[0] == node.input[1]
    return node.op_type == "Pow" and node.input[1] in graph.constants and float(graph.constant(node.input[1])) == 2.0


def _is_scaling(graph: Topology, index: int) -> bool:
    node = graph.nodes[index]
    if node.op_type not in ("Mul", "Div"):
        return False
    return any(name in graph.constants and not graph.constants[name].dims for name in node.input)


def _root_chain(graph: Topology, name: str) -> list[int]:
    """From a mean square on: + eps (if it is there), square root, reciprocal, and the product of x and that."""
    chain: list[int] = []
    for op in ("Add", "Sqrt", "Reciprocal", "Div", "Mul"):
        readers = [index for index in graph.readers.get(name, []) if graph.nodes[index].op_type == op]
        if len(readers) != 1:
            continue
        node = graph.nodes[readers[0]]
        chain.append(readers[0])
        name = node.output[0]
        if op == "Div" and node.input[0] not in graph.constants:
            break  # x / sqrt(...): that is the product already
    return chain


def _quantised_constant(graph: Topology, name: str, floats: set[str] | frozenset[str]) -> bool:
    """Whether a constant is a term or factor of arithmetic that happens on the grid."""
    if not graph.is_float(name):
        return False
    readers = [graph.nodes[index] for index in graph.readers.get(name, [])]
    arithmetic = ("Add", "Sub", "Mul", "Div", "LayerNormalization", "RMSNormalization", "Where")
    return bool(readers) and all(
        node.op_type in arithmetic and not any(output in floats for output in node.output) for node in readers
    )
