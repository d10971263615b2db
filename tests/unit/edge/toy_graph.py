"""A decoder of two layers as an ONNX graph, written by hand: a second or two less than an export, and other names.

It has the canonical interface (graph/spec.py). With ``spike`` token 0 makes the first layer's MLP put a massive
activation onto the residual stream, as real models do with their first token.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from octavo_device.spec import GraphSpec, RopeSpec, graph_file, write_spec

VOCAB, HIDDEN, HEADS, KV, DIM, INNER, CONTEXT, LAYERS = 64, 32, 4, 2, 8, 64, 24, 2
SPIKE_CHANNEL = 3


class _Builder:
    """Appends nodes; results are numbered from ``first``, so that graphs of two sizes have different names."""

    def __init__(self, first):
        self.nodes, self.constants, self._next = [], [], first

    def __call__(self, op, *inputs, output=None, num_outputs=1, **attributes):
        names = [output] if output else [f"val_{self._next + i}" for i in range(num_outputs)]
        self._next += num_outputs
        if op == "Split":
            attributes["num_outputs"] = num_outputs
        self.nodes.append(helper.make_node(op, list(inputs), names, f"node_{op}_{self._next}", **attributes))
        return names[0] if num_outputs == 1 else names

    def constant(self, values, name=None):
        name = name or f"const_{self._next}"
        self._next += 1
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name


def toy_weights(seed=0, *, spike=False, vocab=VOCAB):
    """Weights by name."""
    rng = np.random.default_rng(seed)

    def random(*shape):
        return (rng.normal(size=shape) / np.sqrt(shape[1])).astype(np.float32)

    weights = {"embed": rng.normal(size=(vocab, HIDDEN)).astype(np.float32), "head": random(vocab, HIDDEN)}
    weights["head"] *= 3
    for layer in range(LAYERS):
        shapes = {"q": (HIDDEN, HIDDEN), "k": (KV * DIM, HIDDEN), "v": (KV * DIM, HIDDEN), "o": (HIDDEN, HIDDEN)}
        shapes |= {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
        weights |= {f"{name}_{layer}": random(*shape) for name, shape in shapes.items()}
        for name in ("attention_norm", "mlp_norm"):
            weights[f"{name}_{layer}"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    weights["norm"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    if spike:
        weights["embed"][:, 0] = 0
        weights["embed"][0, 0] = 4
        weights["o_0"][0] = 0
        for name in ("gate_0", "up_0"):
            weights[name][0] = 0
            weights[name][0, 0] = 4
        weights["down_0"][:, 0] = 0
        weights["down_0"][SPIKE_CHANNEL] = 0
        weights["down_0"][SPIKE_CHANNEL, 0] = 200
    return weights


def toy_spec(ars=(8, 1), vocab=VOCAB):
    frequencies = tuple(float(np.float32(10000.0 ** (-2 * i / DIM))) for i in range(DIM // 2))
    return GraphSpec(
        context_length=CONTEXT,
        ars=ars,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV,
        head_dim=DIM,
        hidden_size=HIDDEN,
        vocab_size=vocab,
        rope=RopeSpec(inverse_frequencies=frequencies),
    )


def write_toy(folder, *, seed=0, spike=False, ars=(8, 1), vocab=VOCAB):
    """``spec.json``, ``arN.onnx`` and ``weights.data``; returns the spec."""
    spec, weights = toy_spec(ars, vocab), toy_weights(seed, spike=spike, vocab=vocab)
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(folder, spec)
    for index, ar in enumerate(ars):
        model = onnx.shape_inference.infer_shapes(_graph(spec, weights, ar, first=1000 * index), data_prop=True)
        onnx.checker.check_model(model)
        onnx.save_model(
            model, folder / graph_file(ar), save_as_external_data=True, location="weights.data", size_threshold=1024
        ) if not index else onnx.save_model(_pointing_at(folder, model, ars[0]), folder / graph_file(ar))
    return spec


def _pointing_at(folder, model, first_ar):
    """Large constants of a graph as references into the first graph's data file."""
    first = onnx.load(folder / graph_file(first_ar), load_external_data=False)
    by_name = {tensor.name: tensor for tensor in first.graph.initializer if tensor.external_data}
    for tensor in model.graph.initializer:
        if tensor.name in by_name:
            tensor.CopyFrom(by_name[tensor.name])
    return model


def _graph(spec, weights, ar, *, first):
    g = _Builder(first)
    norms = {}
    down = g.constant(np.float32(1 / 128))
    eps = g.constant(np.float32(1e-5 / 128**2))
    two = g.constant(np.float32(2))
    factor = g.constant(np.float32(DIM**-0.5))

    def norm(x, name):
        small = g("Mul", x, down)
        mean = g("ReduceMean", g("Pow", small, two), g.constant(np.array([-1])), keepdims=1)
        root = g("Reciprocal", g("Sqrt", g("Add", mean, eps)))
        norms[name] = g.constant(weights[name], name)
        return g("Mul", g("Mul", small, root), norms[name])

    def conv(x, name, output=None):
        return g("Conv", x, g.constant(weights[name][:, :, None, None], name), output=output)

    def shaped(x, *shape):
        return g("Reshape", x, g.constant(np.array(shape)))

    def rotate(x, cos, sin, output=None):
        low, high = g("Split", x, num_outputs=2, axis=2)
        left = g("Sub", g("Mul", low, cos), g("Mul", high, sin))
        right = g("Add", g("Mul", high, cos), g("Mul", low, sin))
        return g("Concat", left, right, axis=2, output=output)

    cos, sin = (g("Transpose", name, perm=[0, 1, 3, 2]) for name in ("cos", "sin"))
    x = g("Unsqueeze", g("Gather", g.constant(weights["embed"], "embed"), "input_ids"), g.constant(np.array([0])))
    for layer in range(LAYERS):
        normed = g("Transpose", norm(x, f"attention_norm_{layer}"), perm=[0, 3, 1, 2])
        query = rotate(shaped(conv(normed, f"q_{layer}"), HEADS, 1, DIM, ar), cos, sin)
        key = rotate(shaped(conv(normed, f"k_{layer}"), KV, 1, DIM, ar), cos, sin, output=f"key_{layer}")
        value = shaped(conv(normed, f"v_{layer}"), KV, 1, DIM, ar)
        value = g("Transpose", value, perm=[0, 1, 3, 2], output=f"value_{layer}")
        query = g("Transpose", g("Mul", query, factor), perm=[0, 1, 3, 2])
        query = shaped(query, KV, 1, HEADS // KV * ar, DIM)
        scores = g("MatMul", query, g("Concat", f"past_key_{layer}", key, axis=3))
        scores = g("Add", shaped(scores, KV, HEADS // KV, ar, CONTEXT), "attention_mask")
        seen = shaped(g("Softmax", scores, axis=-1), KV, 1, HEADS // KV * ar, CONTEXT)
        mixed = g("MatMul", seen, g("Concat", f"past_value_{layer}", value, axis=2))
        mixed = g("Transpose", shaped(mixed, KV, HEADS // KV, ar, DIM), perm=[0, 1, 3, 2])
        x = g("Add", x, g("Transpose", conv(shaped(mixed, 1, HIDDEN, 1, ar), f"o_{layer}"), perm=[0, 2, 3, 1]))
        normed = g("Transpose", norm(x, f"mlp_norm_{layer}"), perm=[0, 3, 1, 2])
        gate = conv(normed, f"gate_{layer}")
        inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), conv(normed, f"up_{layer}"))
        x = g("Add", x, g("Transpose", conv(inner, f"down_{layer}"), perm=[0, 2, 3, 1]))
    logits = conv(g("Transpose", norm(x, "norm"), perm=[0, 3, 1, 2]), "head")
    g("Squeeze", g("Transpose", logits, perm=[0, 2, 3, 1]), g.constant(np.array([0])), output="logits")

    def values(specs):
        types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        return [helper.make_tensor_value_info(s.name, types[s.dtype], s.shape) for s in specs]

    graph = helper.make_graph(g.nodes, "decoder", values(spec.inputs(ar)), values(spec.outputs(ar)), g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
