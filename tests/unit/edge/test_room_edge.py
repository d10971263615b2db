"""How much of a disk a build takes is known before it begins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from unit.edge.small_models import FAMILIES, adapt, checkpoint, context, optimise

from octavo_common.space import NoSpace
from octavo_edge.__main__ import main
from octavo_edge.models.adaptation import adapt_model
from octavo_edge.models.size import read_size
from octavo_edge.recipe import PRESETS, Calibration, Evaluation
from octavo_edge.room import Asked, Needs, needs, require_room
from octavo_edge.stages.quantise import Quantise

LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2}
RECIPE = replace(PRESETS["w8a16"], calibration=Calibration(num_windows=4), evaluation=Evaluation(num_windows=2))
ASKED = Asked(recipe=RECIPE, context_length=64, ars=(16, 1))


def bytes_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_tells_how_many_numbers_there_are(tmp_path, family):
    source, model = checkpoint(tmp_path / "model", family)
    size = read_size(source.path)
    decoder = adapt_model(model, attention="mha")
    matrices = [tensor.numel() for tensor in decoder.layers.parameters() if tensor.ndim == 4]
    assert size is not None
    assert size.num_block_params == sum(matrices)
    assert size.num_table_params == decoder.embed_tokens.weight.numel()
    assert size.tied_embeddings == decoder.config.tied_embeddings


def test_a_configuration_without_dimensions_has_no_size(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert read_size(tmp_path) is None


@pytest.mark.parametrize("prefix", [(), (5, 6, 7)])
def test_what_stages_write_is_what_was_expected(tmp_path, prefix):
    source, _ = checkpoint(tmp_path / "model", "llama", **LARGE)
    size = read_size(source.path)
    assert size is not None
    recipe = replace(RECIPE, prefix=prefix)
    expected = needs(size, replace(ASKED, recipe=recipe, num_prefix_tokens=len(prefix)))
    adapted, _ = adapt(source, tmp_path / "adapt")
    graphs, _ = optimise(adapted, tmp_path / "optimise")
    ctx = context(tmp_path / "quantise")
    Quantise(recipe=recipe).run(graphs, ctx)
    found = {"adapt": bytes_of(adapted.path), "optimise": bytes_of(graphs.path), "quantise": bytes_of(ctx.out)}
    fixed = 23 << 20  # for a tokenizer: this one's is small
    for stage, size_bytes in found.items():
        assert size_bytes <= expected.results[stage] <= 2 * size_bytes + fixed, stage
    thrown_away = bytes_of(ctx.scratch)
    assert thrown_away <= expected.scratch["quantise"] <= 3 * thrown_away


def test_a_disk_is_asked_for_the_most_that_is_there_at_once():
    found = Needs(results={"adapt": 10, "optimise": 20, "quantise": 5}, scratch={"quantise": 30}, delivered=7)
    assert found.store_bytes(()) == 65
    assert found.store_bytes({"adapt", "optimise"}) == 35
    assert found.store_bytes({"adapt", "optimise", "quantise"}) == 0
    assert replace(found, scratch={"adapt": 30}).store_bytes(()) == 40


def test_a_disk_with_too_little_room_is_refused_with_both_numbers(tmp_path):
    gigabyte = 10**9
    found = Needs(results={"adapt": 3 * gigabyte}, scratch={}, delivered=gigabyte)
    places = {"store": tmp_path / "store" / "deep", "out": tmp_path / "out"}
    with pytest.raises(NoSpace, match=r"takes about 4\.0 GB .* which has 2\.5 GB free") as caught:
        require_room(found, **places, free_bytes=lambda _: int(2.5 * gigabyte))
    assert "free 1.5 GB" in caught.value.hint and "--store and --out" in caught.value.hint
    require_room(found, **places, kept={"adapt"}, free_bytes=lambda _: gigabyte)
    require_room(found, **places, free_bytes=lambda _: 4 * gigabyte)


def test_a_build_that_no_disk_holds_ends_before_its_first_stage(tmp_path, capsys):
    source, _ = checkpoint(tmp_path / "model", "llama")
    file = source.path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 10**9}))
    places = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    given = ["build", str(source.path), "--target", "onnxruntime", "--context-length", "32", "--ar", "8,1", *places]
    assert main(given) == 1
    told = capsys.readouterr().err
    assert "GB free" in told and "--store" in told
    assert not (tmp_path / "out").exists() and not list((tmp_path / "store" / "objects").iterdir())
