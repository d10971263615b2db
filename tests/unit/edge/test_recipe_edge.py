"""Recipes: what is written is read back, and what is misspelt or makes no sense is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_edge.recipe import (
    GPTQ,
    PRESETS,
    Calibration,
    Evaluation,
    Gates,
    Granularity,
    Method,
    MixedPrecision,
    Precision,
    QType,
    Recipe,
    RecipeInvalid,
    SensitivityMetric,
    SeqMSE,
    Unit,
    WeightPrecision,
    checked,
)
from octavo_edge.recipe_file import from_yaml, load, to_yaml

INT4 = "precision: {blocks: {qtype: int4}}\n"
limits = st.none() | st.floats(0, 1e6, allow_nan=False)
counts = st.integers(1, 1000)
texts = st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1), max_size=3).map(
    tuple
)


@st.composite
def weights(draw):
    granularity = draw(st.sampled_from(Granularity))
    blocked = granularity in (Granularity.BQ, Granularity.LPBQ)
    choices = [QType.INT4] if granularity is Granularity.LPBQ else [QType.INT4, QType.INT8, QType.INT16]
    size = draw(st.sampled_from([16, 32, 64, 128, 256])) if blocked else None
    return WeightPrecision(qtype=draw(st.sampled_from(choices)), granularity=granularity, block_size=size)


recipes = st.builds(
    Recipe,
    name=st.text(min_size=1).filter(lambda name: name.isprintable()),
    precision=st.builds(
        Precision,
        activations=st.sampled_from([QType.INT8, QType.INT16]),
        residual=st.sampled_from([QType.INT16, QType.FLOAT16, QType.FLOAT32]),
        kv_cache=st.sampled_from([QType.INT8, QType.INT16, QType.FLOAT32]),
        embedding=st.sampled_from([QType.INT8, QType.INT16, QType.FLOAT32]),
        lm_head=weights(),
        blocks=weights(),
    ),
    prefix=st.lists(
        st.integers(0, 10**6) | st.text(min_size=1).filter(lambda text: text.isprintable()), max_size=4
    ).map(tuple),
    calibration=st.builds(
        Calibration, method=st.sampled_from(Method), num_windows=counts, percentile=st.floats(50.1, 100), texts=texts
    ),
    recipe=st.lists(
        st.builds(SeqMSE, num_candidates=counts, num_windows=counts) | st.builds(GPTQ, num_windows=counts), max_size=2
    ).map(tuple),
    evaluation=st.builds(Evaluation, num_windows=counts, texts=texts),
    gates=st.builds(Gates, max_mean_kl_nats=limits, min_sqnr_db=limits),
)


@settings(deadline=None)
@given(recipes)
def test_what_is_written_is_read_back(recipe):
    again = from_yaml(to_yaml(recipe), name="another")
    assert again == recipe
    assert again.fingerprint() == recipe.fingerprint()


@pytest.mark.parametrize("recipe", PRESETS.values(), ids=str)
def test_presets_make_sense_and_are_found_by_name(recipe):
    assert load(recipe.name) == checked(recipe) == from_yaml(to_yaml(recipe))


def test_a_recipe_as_users_of_other_tools_write_it():
    recipe = from_yaml("""
precision:
  activations: int16
  kv_cache: int8
  embedding: int16
  lm_head: {qtype: int8, granularity: PCQ}
  blocks: {qtype: int4, granularity: LPBQ, block_size: 64}
calibration: {method: percentile, percentile: 99.9, num_windows: 50}
recipe:
  - name: SeqMSE
    num_candidates: 10
gates: {max_mean_kl_nats: 1e-3}
""")
    assert recipe.precision.blocks == WeightPrecision(qtype=QType.INT4, granularity=Granularity.LPBQ, block_size=64)
    assert recipe.calibration == Calibration(method=Method.PERCENTILE, percentile=99.9, num_windows=50)
    assert recipe.recipe == (SeqMSE(num_candidates=10, num_windows=4),)
    assert recipe.gates == Gates(max_mean_kl_nats=0.001)


def test_mixed_precision_is_read_back_and_decides_what_is_built():
    step = "recipe: [{name: MixedPrecision, metric: sqnr, by: weight, max_count: 3, to: {qtype: int16}}]"
    recipe = from_yaml(INT4 + step)
    to = WeightPrecision(qtype=QType.INT16)
    asked = MixedPrecision(metric=SensitivityMetric.SQNR, by=Unit.WEIGHT, max_count=3, to=to)
    assert recipe.recipe == (asked,)
    assert from_yaml(to_yaml(recipe)) == recipe
    assert recipe.fingerprint() != from_yaml(INT4 + step.replace("max_count: 3", "max_count: 4")).fingerprint()
    # Finer groups of as many bits are finer too.
    blocks = (
        "precision: {blocks: {qtype: int8}}\nrecipe: [{name: MixedPrecision, to: {granularity: BQ, block_size: 64}}]"
    )
    assert from_yaml(blocks).precision.blocks.qtype is QType.INT8


def test_the_recipe_of_the_documentation_is_one():
    page = (Path(__file__).parents[3] / "docs" / "edge.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert from_yaml(block).recipe == (SeqMSE(),)


def test_name_and_gates_do_not_change_what_is_built():
    texts = ("name: a", "gates: {min_sqnr_db: 20}", "name: b")
    assert len({from_yaml(text).fingerprint() for text in texts}) == 1
    assert from_yaml("calibration: {num_windows: 61}").fingerprint() != from_yaml("").fingerprint()
    places = [from_yaml("calibration: {texts: [a.txt]}", folder=Path(folder)) for folder in ("/one", "/two")]
    assert len({recipe.fingerprint() for recipe in places}) == 1


@pytest.mark.parametrize(
    ("text", "param", "told"),
    [
        ("precison: {}", "precison", "did you mean 'precision'"),
        ("precision: {lm_hed: {}}", "precision.lm_hed", "did you mean 'lm_head'"),
        ("precision: {blocks: {qtype: int4, blocksize: 64}}", "precision.blocks.blocksize", "'block_size'"),
        ("recipe: [{name: SeqMSE, candidates: 3}]", "recipe[0].candidates", "'num_candidates'"),
        ("recipe: [{name: SpinQuant}]", "recipe[0].name", "not built here"),
        ("recipe: [{name: seqmse}]", "recipe[0].name", "did you mean 'SeqMSE'"),
        ("recipe: [SeqMSE]", "recipe[0]", "a mapping with a name"),
        ("recipe: [{name: MixedPrecision}]", "recipe[0].to", "no finer than precision.blocks"),
        (f"{INT4}recipe: [{{name: MixedPrecision, to: {{qtype: float32}}}}]", "recipe[0].to.qtype", "integers"),
        (f"{INT4}recipe: [{{name: MixedPrecision, to: {{granularity: BQ}}}}]", "recipe[0].to.block_size", "needed"),
        (f"{INT4}recipe: [{{name: MixedPrecision, max_share: 0}}]", "recipe[0].max_share", "over 0"),
        (f"{INT4}recipe: [{{name: MixedPrecision, max_count: 0}}]", "recipe[0].max_count", "at least 1"),
        (f"{INT4}recipe: [{{name: MixedPrecision}}, {{name: MixedPrecision}}]", "recipe[0].name", "comes once"),
        ("precision: {blocks: {qtype: int3}}", "precision.blocks.qtype", "one of int4"),
        ("precision: {blocks: {granularity: LPBQ, block_size: 64}}", "precision.blocks.granularity", "for int4"),
        ("precision: {blocks: {qtype: int4, granularity: BQ}}", "precision.blocks.block_size", "needed for BQ"),
        ("precision: {blocks: {block_size: 64}}", "precision.blocks.block_size", "for BQ and LPBQ"),
        ("precision: {kv_cache: int4}", "precision.kv_cache", "one of int8, int16, float32"),
        ("precision: int8", "precision", "a mapping"),
        ("calibration: {num_windows: 0}", "calibration.num_windows", "at least 1"),
        ("calibration: {num_windows: yes}", "calibration.num_windows", "a whole number"),
        ("calibration: {percentile: .nan}", "calibration.percentile", "a number"),
        ("calibration: {percentile: 10}", "calibration.percentile", "over 50"),
        ("calibration: {texts: a.txt}", "calibration.texts", "a list"),
        ("prefix: true", "prefix", "is True; it is bos, or a list of ids and texts of tokens"),
        ("prefix: 3", "prefix", "is 3; it is bos, or a list"),
        ("prefix: BOS", "prefix", "is 'BOS'; it is bos, or a list"),
        ("prefix: {token: bos}", "prefix", "it is bos, or a list"),
        ("prefix: [1, 2.5]", "prefix[1]", "is 2.5; it is a token's id, or a text"),
        ("prefix: [no]", "prefix[0]", "is False; it is a token's id, or a text"),
        ("prefix: [[1]]", "prefix[0]", "a token's id, or a text"),
        ("prefix: [5, -1]", "prefix[1]", "is -1; it is a token's id from 0 on, or a text"),
        ("prefix: ['']", "prefix[0]", "from 0 on, or a text"),
        ("prefx: bos", "prefx", "did you mean 'prefix'"),
        ("gates: {max_ppl_ratio: much}", "gates.max_ppl_ratio", "a number"),
        ("gates: {max_kl: 1}", "gates.max_kl", "did you mean"),
        ("name: 3", "name", "text"),
        ("name: a\nname: b", "recipe", "given twice"),
        ("[1]", "recipe", "no mapping"),
        ("{", "recipe", "no YAML"),
        ("!!python/object/apply:os.system ['true']", "recipe", "no YAML"),
    ],
)
def test_what_is_wrong_is_named(text, param, told):
    with pytest.raises(RecipeInvalid) as caught:
        from_yaml(text)
    assert caught.value.param == param
    assert told in f"{caught.value.message} - {caught.value.hint}"


def test_texts_are_relative_to_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("calibration: {texts: [a.txt, /abs/b.txt]}")
    recipe = load(str(file))
    assert recipe.name == "mine"
    assert recipe.calibration.texts == (str(tmp_path / "a.txt"), "/abs/b.txt")


def test_neither_preset_nor_file(tmp_path):
    with pytest.raises(RecipeInvalid, match="neither a preset") as caught:
        load("w8a15")
    assert "did you mean 'w8a16'" in caught.value.hint
    with pytest.raises(RecipeInvalid, match="neither a preset"):
        load(str(tmp_path))
