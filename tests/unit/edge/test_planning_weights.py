"""From recipes to plans."""

from dataclasses import replace

from octavo_edge.quant.grid import INT4, INT8, UINT16
from octavo_edge.quant.placement import WeightKind
from octavo_edge.quant.planning import plan_of
from octavo_edge.recipe import GPTQ, PRESETS, Granularity, Precision, QType, Recipe, SeqMSE, WeightPrecision

INT4_HEAD = WeightPrecision(qtype=QType.INT4)


def test_sixteen_bits_are_unsigned_and_a_cache_of_eight_is_symmetric():
    plan = plan_of(Recipe(name="r"))
    assert plan.activations.grid == UINT16 and plan.activations.cache == INT8
    assert plan.activations.float_residual
    assert plan.weights[WeightKind.BLOCK].grid == INT8
    table = plan.weights[WeightKind.EMBEDDING]
    assert (table.grid, table.granularity) == (UINT16, Granularity.PTQ)


def test_what_is_float_is_absent():
    floats = WeightPrecision(qtype=QType.FLOAT32)
    precision = Precision(
        activations=QType.FLOAT32, kv_cache=QType.FLOAT32, embedding=QType.FLOAT32, lm_head=floats, blocks=floats
    )
    plan = plan_of(Recipe(name="r", precision=precision))
    assert plan.weights == {} and plan.activations.grid is None and plan.activations.cache is None


def test_a_residual_of_sixteen_bits_is_quantised():
    precision = replace(Precision(), residual=QType.INT16)
    assert not plan_of(Recipe(name="r", precision=precision)).activations.float_residual


def test_steps_are_for_blocks_and_for_a_head_of_four_bits():
    recipe = Recipe(name="r", recipe=(SeqMSE(num_candidates=7, num_windows=3), GPTQ(num_windows=9)))
    plan = plan_of(recipe)
    blocks, head = plan.weights[WeightKind.BLOCK], plan.weights[WeightKind.HEAD]
    assert (blocks.num_candidates, blocks.feedback, plan.num_input_batches) == (7, True, 9)
    assert not head.needs_inputs
    four = plan_of(replace(recipe, precision=replace(Precision(), lm_head=INT4_HEAD)))
    assert four.weights[WeightKind.HEAD].num_candidates == 7 and four.weights[WeightKind.HEAD].feedback


def test_table_and_head_of_the_four_bit_preset_have_the_same_integers():
    plan = plan_of(PRESETS["w4a16"])
    table, head, blocks = (plan.weights[kind] for kind in (WeightKind.EMBEDDING, WeightKind.HEAD, WeightKind.BLOCK))
    assert table == head
    assert (blocks.grid, blocks.granularity, blocks.block_size) == (INT4, Granularity.LPBQ, 64)
    assert blocks.num_candidates and blocks.feedback
