"""What cannot be adapted is refused early, and the message names it."""

import json

import pytest
import torch
from checkpoints import edit_config
from safetensors.torch import load_file, save_file
from unit.edge.small_models import adapt, checkpoint, context, optimise

from octavo_common.errors import Cancelled, InvalidArgument
from octavo_common.text.bundle import UnsupportedTokenizer
from octavo_edge.artifacts import source_model
from octavo_edge.models.config import UnsupportedModel
from octavo_edge.models.source import CorruptCheckpoint
from octavo_edge.stage import Cancellation
from octavo_edge.stages.adapt import Adapt


@pytest.fixture
def source(tmp_path):
    found, _ = checkpoint(tmp_path / "source")
    return found


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, "Gemma3ForCausalLM"),
        ({"model_type": "no_such_model", "architectures": None}, "no_such_model"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "dynamic"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_an_unsupported_model_is_refused_by_name(source, tmp_path, values, word):
    edit_config(source.path, **values)
    # Early: before weights are read, which are damaged here.
    (source.path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UnsupportedModel, match=word):
        adapt(source, tmp_path / "adapted")


def test_a_context_longer_than_the_models_is_refused_before_weights_are_read(source, tmp_path):
    (source.path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InvalidArgument, match=r"65 tokens .* 2 to 64"):
        adapt(source, tmp_path / "adapted", context_length=65)


def test_graphs_longer_than_their_context_are_refused(source, tmp_path):
    adapted, _ = adapt(source, tmp_path / "adapted")
    with pytest.raises(InvalidArgument, match="64"):
        optimise(adapted, tmp_path / "one", context_length=64, ars=(64,))
    with pytest.raises(InvalidArgument, match="65"):
        optimise(adapted, tmp_path / "two", context_length=65)


def test_layers_with_and_without_a_window_are_built_within_it(tmp_path):
    mixed = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    source, _ = checkpoint(tmp_path / "source", "qwen2", **mixed)
    with pytest.raises(InvalidArgument, match="2 to 24"):
        adapt(source, tmp_path / "long", context_length=25)
    _, outcome = adapt(source, tmp_path / "short", context_length=24)
    assert outcome.metrics["worst_sqnr_db"] > 100


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_corrupt(source, tmp_path, cut):
    file = source.path / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(CorruptCheckpoint, match="cannot be loaded"):
        adapt(source, tmp_path / "adapted")


def edited(source, change):
    file = source.path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_missing_weight_is_told(source, tmp_path):
    edited(source, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CorruptCheckpoint, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        adapt(source, tmp_path / "adapted")


def test_a_weight_of_another_shape_is_told(source, tmp_path):
    edited(source, lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(CorruptCheckpoint, match=r"another shape .* for model\.norm\.weight"):
        adapt(source, tmp_path / "adapted")


def test_a_weight_that_is_no_number_is_told(source, tmp_path):
    edited(source, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
    with pytest.raises(CorruptCheckpoint, match=r"model\.norm\.weight"):
        adapt(source, tmp_path / "adapted")


def test_a_weight_that_the_architecture_does_not_have_is_told(source, tmp_path):
    edited(source, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    with pytest.raises(CorruptCheckpoint, match=r"beyond its architecture model\.layers\.0\.self_attn\.q_norm"):
        adapt(source, tmp_path / "adapted")


def test_frequencies_that_old_checkpoints_carry_are_no_weights(source, tmp_path):
    edited(source, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert adapt(source, tmp_path / "adapted")[1].metrics["worst_sqnr_db"] > 100


def test_files_that_are_no_models_are_told(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CorruptCheckpoint, match=r"model\.gguf"):
        adapt(source_model(file), tmp_path / "adapted")


def test_a_damaged_configuration_is_told(source, tmp_path):
    (source.path / "config.json").write_text("{")
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        adapt(source, tmp_path / "adapted")


def test_a_model_without_a_tokenizer_is_refused(source, tmp_path):
    (source.path / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json"):
        adapt(source, tmp_path / "adapted")


@pytest.mark.parametrize("entry", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_size_that_the_configuration_does_not_say_is_not_made_up(source, tmp_path, entry):
    """transformers would take that of the family's usual model: tens of gigabytes, before anything fails."""
    edit_config(source.path, **{entry: None})
    with pytest.raises(CorruptCheckpoint, match=rf"config\.json does not say {entry}"):
        adapt(source, tmp_path / "adapted")


def test_a_tokenizer_of_another_model_is_refused(source, tmp_path):
    file = source.path / "tokenizer.json"
    value = json.loads(file.read_text())
    value["model"]["vocab"] = {token: index + 200 for token, index in value["model"]["vocab"].items()}
    file.write_text(json.dumps(value))
    with pytest.raises(UnsupportedTokenizer):
        adapt(source, tmp_path / "adapted")


def test_a_cancelled_stage_stops_and_leaves_no_weights(source, tmp_path):
    cancellation = Cancellation()
    cancellation.ask()
    ctx = context(tmp_path / "run", cancellation=cancellation)
    with pytest.raises(Cancelled):
        Adapt(context_length=64).run(source, ctx)
    assert list(ctx.out.iterdir()) == []
