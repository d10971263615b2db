"""What the edge builder's benchmarks are made of."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.edge_memory import first_layers
from benchmarks.edge_methods import checks_of, methods
from unit.edge.small_models import adapt, checkpoint

from octavo_device.feeds import Decoding
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.decoder import load_decoder
from octavo_edge.models.running import TorchModel
from octavo_edge.recipe import PRESETS, Gates, checked
from octavo_edge.recipe_file import from_yaml, to_yaml


def test_every_method_is_a_recipe_that_can_be_written_down():
    names = [method.name for method in methods()]
    assert len(set(names)) == len(names)
    for method in methods():
        recipe = method.with_windows(3, 2)
        assert checked(recipe) == recipe == from_yaml(to_yaml(recipe))
        assert recipe.evaluation.num_windows == 2 and recipe.gates == Gates()


def test_the_presets_are_measured_as_such():
    by_name = {method.name: method.with_windows(12, 2) for method in methods()}
    for name, preset in PRESETS.items():
        assert by_name[name].precision == preset.precision and by_name[name].recipe == preset.recipe
    assert by_name["w4a16"].calibration == PRESETS["w4a16"].calibration


def test_the_best_of_four_bits_is_held_against_eight():
    figures = {"w8a16.mean_kl_nats": 0.008, "w8a16.ppl_ratio": 1.0, "w8a16.size_bytes": 100.0}
    for name, kl, size in (("w4a16-bq", 0.4, 50.0), ("w4a16-lpbq", 0.1, 60.0), ("w4a16", 0.2, 70.0)):
        figures |= {f"{name}.mean_kl_nats": kl, f"{name}.ppl_ratio": 1.1, f"{name}.size_bytes": size}
        figures[f"{name}.seconds"] = 7.0
    checks = {check.name: check.value for check in checks_of(figures, ["w8a16", "w4a16-bq", "w4a16-lpbq", "w4a16"])}
    assert checks["best W4A16 (w4a16-lpbq), bytes to W8A16's"] == 0.6
    assert checks["best W4A16 (w4a16-lpbq), mean KL in nats"] == 0.1
    assert checks["quantising by w4a16, seconds"] == 7.0
    # A run without the preset says nothing of the best.
    assert not [check for check in checks_of(figures, ["w4a16-bq"]) if "best" in check.name]


def test_the_first_layers_are_those_of_the_model(tmp_path):
    source, model = checkpoint(tmp_path / "model", "llama")
    adapted, _ = adapt(source, tmp_path / "adapt")
    first_layers(adapted.path, tmp_path / "first", 1)
    decoder = load_decoder(tmp_path / "first")
    spec = decoder.config.graph_spec(context_length=16, ars=(8,))
    tokens = list(range(5, 13))
    got = Decoding(spec, TorchModel(decoder, spec)).logits(tokens)
    model.model.layers = model.model.layers[:1]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert sqnr_db(expected.astype(np.float32), got) > 100
