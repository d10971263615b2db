"""Quantising the hand-written decoder, and what it does to its logits."""

import numpy as np
from unit.edge.toy_graph import VOCAB, write_toy

from octavo_device.feeds import Decoding
from octavo_device.spec import graph_file, read_spec, write_spec
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.grid import INT8
from octavo_edge.quant.placement import WeightKind, place
from octavo_edge.quant.plan import ActivationPlan, QuantPlan, WeightPlan
from octavo_edge.quant.qdq import write_qdq
from octavo_edge.quant.topology import Topology, corresponding_names

W8 = WeightPlan(grid=INT8)


def plan(blocks=W8, *, head=W8, **activations):
    """Weights as asked; the table is int8 by rows."""
    kinds = {WeightKind.BLOCK: blocks, WeightKind.HEAD: head, WeightKind.EMBEDDING: W8}
    return QuantPlan(activations=ActivationPlan(**activations), weights=kinds, num_input_batches=64)


def sequences(seed, num, length=16, *, first=None):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCAB, size=(num, length))
    if first is not None:
        tokens[:, 0] = first
    return tokens.tolist()


def batches(folder, tokens):
    """Inputs of all calls that feed the sequences to the float graphs."""
    model = OrtModel(folder, num_threads=1)
    found = []
    for sequence in tokens:
        found += [call.inputs for call in Decoding(model.spec, model).calls(sequence, ars=[model.spec.ars[0]])]
    return found


def quantise_toy(source, out, asked, tokens, *, placement=None):
    """Write QDQ graphs of all sizes beside one data file; the calibrated graph, and what it became."""
    model = OrtModel(source, num_threads=1)
    reference = Topology(source / graph_file(model.spec.ars[0]))
    placement = placement or place(reference, float_residual=asked.activations.float_residual)
    quantised = quantise_graph(reference, placement, asked, batches(source, tokens), lambda *_: None)
    write_quantised(source, out, quantised)
    return reference, quantised


def write_quantised(source, out, quantised):
    """Write QDQ graphs of all sizes beside one data file."""
    spec = read_spec(source)
    reference = Topology(source / graph_file(spec.ars[0]))
    out.mkdir(parents=True, exist_ok=True)
    write_spec(out, spec)
    with WeightsWriter(out) as weights:
        for ar in spec.ars:
            graph = Topology(source / graph_file(ar))
            write_qdq(graph, quantised, corresponding_names(reference, graph), out / graph_file(ar), weights)


def logits(folder, tokens, *, ars=None):
    """[sequences, tokens, V] of a folder's graphs."""
    model = OrtModel(folder, num_threads=1)
    return np.stack([Decoding(model.spec, model).logits(sequence, ars=ars) for sequence in tokens])


__all__ = ["W8", "batches", "logits", "plan", "quantise_toy", "sequences", "write_quantised", "write_toy"]
