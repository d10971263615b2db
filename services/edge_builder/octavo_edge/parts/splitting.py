"""Cuts a QDQ graph into parts over the same file of weights. What is quantised at a border is so on both of its sides.

A part gets all nodes that its outputs need, down to what comes in at its border and the model's own inputs; what
several parts need of those (rotary tables turned into another layout) is in each. Tensors are named as in the graph for
most new tokens, whatever the number of a graph's own, so that one file of encodings serves all graphs of a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from octavo_device.spec import GraphSpec
from octavo_edge.parts.borders import Border, CannotSplit, borders
from octavo_edge.parts.layout import PartPlan
from octavo_edge.quant.topology import Topology, corresponding_names

__all__ = ["PartModel", "Splitter"]

_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartModel:
    """A part's graph, and the new names of tensors that encodings know by the whole graph's."""

    model: ModelProto
    renamed: Mapping[str, str]


class Splitter:
    """Cuts one graph.

    Raises:
        CannotSplit: The graph has no residual stream to cut.
        CannotQuantise: The graph is not the ``reference`` for another number of tokens.
    """

    def __init__(self, graph: Topology, reference: Topology, spec: GraphSpec, ar: int) -> None:
        self._graph, self._spec, self._ar = graph, spec, ar
        self._names = _unified(graph, reference)
        self._borders = borders(graph, spec.num_layers)
        inferred = onnx.shape_inference.infer_shapes(graph.model, data_prop=True).graph
        self._shapes = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in inferred.value_info
        }

    def part(self, plan: PartPlan) -> PartModel:
        """The graph of one part."""
        before = self._borders[plan.layers[0]] if plan.begins_inside else None
        behind = self._borders[plan.layers[1]] if plan.ends_inside else None
        goals = [behind.read_as if behind is not None else "logits", *self._cache_outputs(plan)]
        indices, leaves = self._needed(goals, before.made if before is not None else None)
        names = dict(self._names)
        renamed: dict[str, str] = {}
        for border, name, is_behind in ((before, plan.takes, True), (behind, plan.gives, False)):
            if border is not None:
                names |= border.renamed(name, behind=is_behind)
                renamed[self._names[border.made]] = name
        inputs = self._inputs(plan, before, leaves)
        outputs = [self._value(plan.gives, behind)] + [self._value(name, None) for name in self._cache_outputs(plan)]
        used = {name for index in indices for name in self._graph.nodes[index].input}
        constants = [_renamed_tensor(t, names) for name, t in self._graph.constants.items() if name in used]
        nodes = [_renamed_node(self._graph.nodes[index], names) for index in indices]
        made = helper.make_model(
            helper.make_graph(nodes, plan.name, inputs, outputs, constants),
            opset_imports=self._graph.model.opset_import,
            ir_version=self._graph.model.ir_version,
            producer_name="octavo",
        )
        return PartModel(model=made, renamed=renamed)

    def _needed(self, goals: Sequence[str], stop: str | None) -> tuple[list[int], set[str]]:
        """Nodes that the goals are computed by, in their order, and what comes in from outside."""
        indices: set[int] = set()
        leaves: set[str] = set()
        waiting = list(goals)
        while waiting:
            name = waiting.pop()
            index = self._graph.producer.get(name)
            if name == stop or index is None:
                if name and name not in self._graph.constants:
                    leaves.add(name)
            elif index not in indices:
                indices.add(index)
                waiting.extend(self._graph.nodes[index].input)
        return sorted(indices), leaves

    def _inputs(self, plan: PartPlan, before: Border | None, leaves: set[str]) -> list[ValueInfoProto]:
        first, stop = plan.layers
        allowed = ["attention_mask", "cos", "sin"] if plan.kind == "decoder" else []
        allowed += [f"past_{kind}_{layer}" for layer in range(first, stop) for kind in ("key", "value")]
        stream = before.made if before is not None else "input_ids"
        if strangers := sorted(leaves - {stream, *allowed}):
            raise CannotSplit(f"{self._graph.path.name}: {plan.name} would need {strangers[0]} of another part")
        taken = [self._value(name, None) for name in allowed if name in leaves]
        return [self._value(plan.takes, before), *taken]

    def _cache_outputs(self, plan: PartPlan) -> list[str]:
        return [f"{kind}_{layer}" for layer in range(*plan.layers) for kind in ("key", "value")]

    def _value(self, name: str, border: Border | None) -> ValueInfoProto:
        if border is None:
            specs = (*self._spec.inputs(self._ar), *self._spec.outputs(self._ar))
            spec = next(spec for spec in specs if spec.name == name)
            return helper.make_tensor_value_info(name, _TYPES[spec.dtype], spec.shape)
        shape = self._shapes.get(border.made, ())
        if not shape or not all(shape):
            raise CannotSplit(f"{self._graph.path.name}: {border.made} has no fixed shape")
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _unified(graph: Topology, reference: Topology) -> dict[str, str]:
    """Names of a graph's tensors to those that they get: the reference's, for constants as far as they are free."""
    known = corresponding_names(reference, graph)
    names = {name: known[name] for name in (*graph.inputs, *graph.producer) if name}
    taken = set(names.values())
    for name in graph.constants:
        wanted = known.get(name, name)
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        names[name] = wanted
    return names


def _renamed_node(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    for values in (copy.input, copy.output):
        for slot, name in enumerate(values):
            values[slot] = names.get(name, name)
    return copy


def _renamed_tensor(tensor: TensorProto, names: Mapping[str, str]) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = names[tensor.name]
    return copy
