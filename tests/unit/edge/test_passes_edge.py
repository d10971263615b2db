"""Every pass on small graphs: it does what it says, and ONNX Runtime computes the same before and after, to the bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from octavo_common.errors import InvalidArgument
from octavo_edge.passes.canonical import constant_second, split_sequences
from octavo_edge.passes.cleanup import drop_zero_bias, remove_dead_code, remove_noops
from octavo_edge.passes.duplicates import merge_common_subexpressions, merge_duplicate_initialisers
from octavo_edge.passes.fold import fold_constants
from octavo_edge.passes.fusion import fuse_rms_norm
from octavo_edge.passes.layout import merge_reshapes, merge_transposes
from octavo_edge.passes.naming import name_by_module
from octavo_edge.passes.registry import DEFAULT_PASSES, PASSES, select_passes

node = helper.make_node


def model(nodes, outputs, constants=None, inputs=None):
    """A graph over `x` [2, 3, 4]; ops `name: shape` say what goes out."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (inputs or {"x": [2, 3, 4]}).items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.array(value), name) for name, value in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)


def run(made):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feeds = {value.name: generator.standard_normal(value.shape).astype(np.float32) for value in session.get_inputs()}
    return session.run(None, feeds)


def changed(run_pass, before):
    """What the pass gives, after all that holds for every pass was checked."""
    original = before.SerializeToString(deterministic=True)
    after = run_pass(before)
    assert before.SerializeToString(deterministic=True) == original
    onnx.checker.check_model(after, full_check=True)
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    for expected, got in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(got, expected)
    again = run_pass(after)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    return after


def ops(made):
    return [entry.op_type for entry in made.graph.node]


def test_constants_are_computed_once():
    nodes = [
        node("Constant", [], ["three"], value=numpy_helper.from_array(np.float32(3))),
        node("Shape", ["x"], ["shape"]),
        node("Constant", [], ["extra"], value_ints=[1]),
        node("Concat", ["shape", "extra"], ["longer"], axis=0),
        node("CastLike", ["two", "x"], ["two_f"]),
        node("Mul", ["two_f", "three"], ["six"]),
        node("Mul", ["x", "six"], ["scaled"]),
        node("Reshape", ["scaled", "longer"], ["y"]),
    ]
    after = changed(fold_constants, model(nodes, {"y": [2, 3, 4, 1]}, {"two": np.array(2, np.int64)}))
    assert ops(after) == ["Mul", "Reshape"]


def test_folding_leaves_outputs_and_what_is_too_long():
    nodes = [
        node("Add", ["a", "a"], ["y"]),
        node("ConstantOfShape", ["long"], ["zeros"], value=numpy_helper.from_array(np.zeros(1, np.float32))),
        node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        node("Add", ["x", "sum"], ["z"]),
    ]
    constants = {"a": np.ones(3, np.float32), "long": np.array([3_000_000], np.int64)}
    after = changed(fold_constants, model(nodes, {"y": [3], "z": [2, 3, 4]}, constants))
    # The sum of the long constant is short: it alone is stored.
    assert ops(after) == ["Add", "Add"]
    assert max(len(tensor.raw_data) for tensor in after.graph.initializer) < 100


def test_a_split_of_a_sequence_is_a_split():
    nodes = [
        node("SplitToSequence", ["x", "size"], ["parts"], axis=2),
        node("SequenceAt", ["parts", "zero"], ["low"]),
        node("SequenceAt", ["parts", "one"], ["high"]),
        node("SequenceAt", ["parts", "one"], ["again"]),
        node("Mul", ["low", "high"], ["product"]),
        node("Add", ["product", "again"], ["y"]),
    ]
    constants = {"size": np.array(2, np.int64), "zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    after = changed(split_sequences, model(nodes, {"y": [2, 3, 2]}, constants))
    assert "SplitToSequence" not in ops(after)
    assert ops(remove_noops(after)) == ["Split", "Mul", "Add"]


def test_a_sequence_whose_element_is_not_known_stays():
    nodes = [
        node("SplitToSequence", ["x", "size"], ["parts"], axis=2),
        node("SequenceLength", ["parts"], ["length"]),
        node("Cast", ["length"], ["y"], to=TensorProto.FLOAT),
    ]
    before = model(nodes, {"y": []}, {"size": np.array(2, np.int64)})
    assert ops(changed(split_sequences, before)) == ops(before)


def test_zero_biases_go_and_others_stay():
    nodes = [
        node("Conv", ["x", "w", "zero"], ["a"]),
        node("Conv", ["a", "w", "one"], ["y"]),
    ]
    constants = {
        "w": np.random.default_rng(1).standard_normal((3, 3, 1)).astype(np.float32),
        "zero": np.zeros(3, np.float32),
        "one": np.ones(3, np.float32),
    }
    after = changed(drop_zero_bias, model(nodes, {"y": [2, 3, 4]}, constants))
    assert [list(entry.input) for entry in after.graph.node] == [["x", "w"], ["a", "w", "one"]]


NOOPS = {
    "Identity": (node("Identity", ["t"], ["u"]), {}),
    "Reshape": (node("Reshape", ["t", "c"], ["u"]), {"c": np.array([2, -1, 4])}),
    "Expand": (node("Expand", ["t", "c"], ["u"]), {"c": np.array([1, 3, 1])}),
    "Transpose": (node("Transpose", ["t"], ["u"], perm=[0, 1, 2]), {}),
    "Cast": (node("Cast", ["t"], ["u"], to=TensorProto.FLOAT), {}),
    "Concat": (node("Concat", ["t"], ["u"], axis=1), {}),
    "Slice": (node("Slice", ["t", "s", "e"], ["u"]), {"s": np.array([0]), "e": np.array([99])}),
    "Mul": (node("Mul", ["t", "c"], ["u"]), {"c": np.ones((1, 4), np.float32)}),
    "Div": (node("Div", ["t", "c"], ["u"]), {"c": np.float32(1)}),
    "Add": (node("Add", ["t", "c"], ["u"]), {"c": np.float32(0)}),
    "Sub": (node("Sub", ["t", "c"], ["u"]), {"c": np.zeros(4, np.float32)}),
}


@pytest.mark.parametrize(("middle", "constants"), NOOPS.values(), ids=NOOPS.keys())
def test_what_gives_its_input_back_goes(middle, constants):
    nodes = [node("Exp", ["x"], ["t"]), middle, node("Sqrt", ["u"], ["y"])]
    assert ops(changed(remove_noops, model(nodes, {"y": [2, 3, 4]}, constants))) == ["Exp", "Sqrt"]
    # As the last node: the output keeps its name.
    last = model([*nodes[:2]], {"u": [2, 3, 4]}, constants)
    assert ops(changed(remove_noops, last)) == ["Exp"]


EFFECTS = {
    "epsilon": (node("Add", ["t", "c"], ["u"]), {"c": np.float32(1e-9)}, [2, 3, 4]),
    "reversed": (
        node("Slice", ["t", "s", "e", "a", "p"], ["u"]),
        {"s": np.array([-1]), "e": np.array([-99]), "a": np.array([2]), "p": np.array([-1])},
        [2, 3, 4],
    ),
    "broadcast": (node("Mul", ["t", "c"], ["u"]), {"c": np.ones((5, 1, 1, 1), np.float32)}, [5, 2, 3, 4]),
    "one minus": (node("Sub", ["c", "t"], ["u"]), {"c": np.float32(0)}, [2, 3, 4]),
    "cast": (node("Cast", ["t"], ["u"], to=TensorProto.DOUBLE), {}, [2, 3, 4]),
}


@pytest.mark.parametrize(("middle", "constants", "shape"), EFFECTS.values(), ids=EFFECTS.keys())
def test_what_has_an_effect_stays(middle, constants, shape):
    nodes = [node("Exp", ["x"], ["t"]), middle, node("Cast", ["u"], ["y"], to=TensorProto.FLOAT)]
    after = changed(remove_noops, model(nodes, {"y": shape}, constants))
    assert middle.op_type in ops(after)


def test_noops_between_inputs_and_outputs_stay():
    nodes = [
        node("Identity", ["x"], ["y"]),
        node("Exp", ["x"], ["z"]),
        node("Identity", ["z"], ["w"]),
        node("Identity", ["c"], ["v"]),
    ]
    outputs = {"y": [2, 3, 4], "z": [2, 3, 4], "w": [2, 3, 4], "v": [2]}
    before = model(nodes, outputs, {"c": np.ones(2, np.float32)})
    assert ops(changed(remove_noops, before)) == ops(before)


def test_a_chain_of_noops_that_ends_in_an_output_goes():
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Identity", ["b"], ["y"]),
        node("Sqrt", ["a"], ["z"]),
        node("Sqrt", ["b"], ["w"]),
    ]
    after = changed(remove_noops, model(nodes, {name: [2, 3, 4] for name in "yzw"}))
    assert ops(after) == ["Exp", "Sqrt", "Sqrt"]


def test_reshapes_in_a_row_are_one():
    nodes = [
        node("Reshape", ["x", "six"], ["a"]),
        node("Unsqueeze", ["a", "zero"], ["b"]),
        node("Squeeze", ["b", "zero"], ["c"]),
        node("Reshape", ["c", "two"], ["y"]),
        node("Exp", ["b"], ["z"]),
    ]
    constants = {"six": np.array([6, 4]), "zero": np.array([0]), "two": np.array([2, 12])}
    after = remove_dead_code(changed(merge_reshapes, model(nodes, {"y": [2, 12], "z": [1, 6, 4]}, constants)))
    assert ops(after) == ["Reshape", "Reshape", "Exp"]
    assert {entry.input[0] for entry in after.graph.node[:2]} == {"x"}


def test_transposes_in_a_row_are_one_or_none():
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[1, 2, 0]),
        node("Transpose", ["a"], ["b"], perm=[2, 0, 1]),
        node("Exp", ["b"], ["y"]),
        node("Transpose", ["a"], ["z"], perm=[1, 0, 2]),
    ]
    after = remove_dead_code(changed(merge_transposes, model(nodes, {"y": [2, 3, 4], "z": [4, 3, 2]})))
    assert ops(after) == ["Exp", "Transpose"]
    assert after.graph.node[0].input[0] == after.graph.node[1].input[0] == "x"


def test_equal_initialisers_are_one_and_those_of_another_type_or_shape_are_not():
    nodes = [
        node("Add", ["x", "a"], ["s"]),
        node("Add", ["s", "b"], ["t"]),
        node("Add", ["t", "row"], ["u"]),
        node("Cast", ["ints"], ["v"], to=TensorProto.FLOAT),
        node("Add", ["u", "v"], ["y"]),
    ]
    constants = {
        "a": np.zeros(4, np.float32),
        "b": np.zeros(4, np.float32),
        "row": np.zeros((1, 4), np.float32),
        "ints": np.zeros(4, np.int32),
    }
    after = changed(merge_duplicate_initialisers, model(nodes, {"y": [2, 3, 4]}, constants))
    assert [tensor.name for tensor in after.graph.initializer] == ["a", "row", "ints"]


def test_weights_at_the_same_place_of_the_external_data_are_one():
    before = model([node("Add", ["x", "a"], ["s"]), node("Add", ["s", "b"], ["y"])], {"y": [2, 3, 4]})
    for name, offset in (("a", 0), ("b", 0), ("c", 4096)):
        tensor = before.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.data"), ("offset", str(offset)), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
    after = merge_duplicate_initialisers(before)
    assert [tensor.name for tensor in after.graph.initializer] == ["a", "c"]
    assert [list(entry.input) for entry in after.graph.node] == [["x", "a"], ["s", "a"]]


def test_what_is_computed_twice_is_computed_once():
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        node("Transpose", ["x"], ["b"], perm=[0, 2, 1]),
        node("Transpose", ["x"], ["c"], perm=[2, 0, 1]),
        node("Exp", ["a"], ["d"]),
        node("Exp", ["b"], ["e"]),
        node("Mul", ["d", "e"], ["y"]),
        node("Exp", ["c"], ["z"]),
        node("Exp", ["c"], ["w"]),
    ]
    after = changed(merge_common_subexpressions, model(nodes, {"y": [2, 4, 3], "z": [4, 2, 3], "w": [4, 2, 3]}))
    # Two outputs of the graph keep a node each.
    assert ops(after) == ["Transpose", "Transpose", "Exp", "Mul", "Exp", "Exp"]


def test_random_numbers_are_not_drawn_once():
    nodes = [
        node("RandomUniformLike", ["x"], ["a"]),
        node("RandomUniformLike", ["x"], ["b"]),
        node("Sub", ["a", "b"], ["y"]),
    ]
    assert len(merge_common_subexpressions(model(nodes, {"y": [2, 3, 4]})).graph.node) == 3


def test_constants_come_second_where_the_order_is_free():
    nodes = [
        node("Mul", ["c", "x"], ["a"]),
        node("Add", ["c", "a"], ["b"]),
        node("Sub", ["c", "b"], ["d"]),
        node("Mul", ["d", "c"], ["y"]),
    ]
    constants = {"c": np.arange(4, dtype=np.float32)}
    after = changed(constant_second, model(nodes, {"y": [2, 3, 4]}, constants))
    assert [list(entry.input) for entry in after.graph.node] == [["x", "c"], ["a", "c"], ["c", "b"], ["d", "c"]]


def test_what_no_output_depends_on_goes():
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Mul", ["a", "c"], ["dead"]),
        node("Sqrt", ["a"], ["y"]),
    ]
    after = changed(remove_dead_code, model(nodes, {"y": [2, 3, 4]}, {"c": np.float32(2)}))
    assert ops(after) == ["Exp", "Sqrt"]
    assert not after.graph.initializer
    assert {info.name for info in after.graph.value_info} <= {"a"}


def scoped(entry, *scopes):
    entry.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", *scopes, "op"]))
    entry.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File somewhere")
    return entry


def test_names_say_the_module_and_nothing_else_is_told():
    nodes = [
        scoped(node("Mul", ["x", "c"], ["a"], name="n1"), "layers.0", "layers.0.norm"),
        scoped(node("Mul", ["a", "c"], ["b"], name="n2"), "layers.0", "layers.0.norm"),
        scoped(node("Split", ["b"], ["p", "q"], name="n3", axis=2, num_outputs=2), "layers.0"),
        scoped(node("Add", ["p", "q"], ["y"], name="n4")),
    ]
    after = name_by_module(model(nodes, {"y": [2, 3, 2]}, {"c": np.float32(2)}))
    onnx.checker.check_model(after, full_check=True)
    for expected, got in zip(run(model(nodes, {"y": [2, 3, 2]}, {"c": np.float32(2)})), run(after), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [entry.name for entry in after.graph.node] == [
        "layers.0.norm/Mul",
        "layers.0.norm/Mul_1",
        "layers.0/Split",
        "Add",
    ]
    assert list(after.graph.node[2].output) == ["layers.0/Split.0", "layers.0/Split.1"]
    assert list(after.graph.node[0].input) == ["x", "layers.0.norm/Mul:1"]
    assert b"somewhere" not in after.SerializeToString()


def test_passes_are_chosen_by_name_and_keep_their_order():
    assert [entry.name for entry in select_passes(["remove_dead_code", "fold_constants"])] == [
        "fold_constants",
        "remove_dead_code",
    ]
    assert set(DEFAULT_PASSES) < {entry.name for entry in PASSES}
    with pytest.raises(InvalidArgument, match="make_faster"):
        select_passes(["fold_constants", "make_faster"])


def norm_nodes(prefix, source, out, axes="last"):
    """x * c, then divided by the root of its mean square, times a weight."""
    p = prefix
    return [
        node("Mul", [source, "down"], [f"{p}s"]),
        node("Pow", [f"{p}s", "two"], [f"{p}sq"]),
        node("ReduceMean", [f"{p}sq", axes], [f"{p}m"], keepdims=1),
        node("Add", [f"{p}m", "eps"], [f"{p}e"]),
        node("Sqrt", [f"{p}e"], [f"{p}r"]),
        node("Reciprocal", [f"{p}r"], [f"{p}i"]),
        node("Mul", [f"{p}s", f"{p}i"], [f"{p}n"]),
        node("Mul", [f"{p}n", "weight"], [out]),
    ]


def test_a_norm_written_out_becomes_one_operator_and_others_stay():
    constants = {
        "down": np.float32(1 / 128),
        "two": np.float32(2),
        "eps": np.float32(1e-3 / 128**2),
        "last": np.array([-1]),
        "middle": np.array([1]),
        "weight": np.array([1.5, -2, 0.5, 3], np.float32),
    }
    before = model(
        [*norm_nodes("a_", "x", "a"), *norm_nodes("b_", "a", "y", axes="middle")],
        {"a": [2, 3, 4], "y": [2, 3, 4]},
        constants,
    )
    after = remove_dead_code(fuse_rms_norm(before))
    onnx.checker.check_model(after, full_check=True)
    assert ops(after) == ["RMSNormalization", *ops(before)[8:]]
    assert after.opset_import[0].version == 23
    for expected, got in zip(run(before), run(after), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)
    assert "fuse_rms_norm" not in DEFAULT_PASSES
