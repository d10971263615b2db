"""Which precision a model gets: by rules, never by a measurement."""

from __future__ import annotations

import pytest

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_worker.models.base import ModelConfig, RopeConfig
from octavo_worker.models.precision import choose_precision


def config(**changes) -> ModelConfig:
    values = {
        "family": "llama", "num_layers": 2, "hidden": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "intermediate": 96, "vocab_size": 100, "rms_eps": 1e-5, "rope": RopeConfig(dim=16), "tie_embeddings": True,
        "context_length": 128,
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})


@pytest.mark.parametrize(
    ("quantization", "has_vnni", "changes", "expected"),
    [
        ("Q4_1", True, {}, "w8a8"),
        ("Q4_0", True, {}, "w8a8"),
        ("Q8_0", True, {}, "w8a8"),
        ("Q6_K", True, {}, "w8a8"),
        ("", True, {}, "w8a8"),
        ("Q4_1", False, {}, "float32"),
        ("", True, {"hidden": 48}, "float32"),
        ("Q4_1", True, {"intermediate": 80}, "float32"),
        ("", True, {"head_dim": 8, "num_heads": 8}, "float32"),
    ],
)
def test_auto_follows_format_sizes_and_processor(quantization, has_vnni, changes, expected) -> None:
    chosen = choose_precision("auto", config(**changes), quantization=quantization, has_vnni=has_vnni)
    assert chosen == expected


def test_what_is_asked_for_is_taken_also_where_it_is_slow() -> None:
    for asked in ("float32", "bfloat16", "w8a8", "w4a8", "w4a16"):
        assert choose_precision(asked, config(), quantization="Q4_1", has_vnni=False) == asked


@pytest.mark.parametrize("asked", ["w4a8", "w4a16"])
def test_what_a_model_cannot_have_is_refused_with_all_reasons(asked) -> None:
    with pytest.raises(FailedPrecondition, match=r"hidden size 48.*4 bits") as refused:
        choose_precision(asked, config(hidden=48), quantization="", has_vnni=True)
    assert "float32" in refused.value.hint


@pytest.mark.parametrize("asked", ["w4a8", "w4a16"])
def test_a_file_without_4_bits_is_told_what_it_can_have(asked) -> None:
    with pytest.raises(FailedPrecondition, match="4 bits") as refused:
        choose_precision(asked, config(), quantization="Q8_0", has_vnni=True)
    assert refused.value.hint == "use bfloat16 or w8a8, or auto"


def test_float16_is_for_gpus() -> None:
    with pytest.raises(InvalidArgument, match="float16 is for GPUs") as refused:
        choose_precision("float16", config(), quantization="", has_vnni=True)
    assert "OCTAVO_WORKER_DEVICE=cuda" in refused.value.hint


def test_bfloat16_asks_for_no_format_and_for_sizes() -> None:
    assert choose_precision("bfloat16", config(), quantization="", has_vnni=True) == "bfloat16"
    with pytest.raises(FailedPrecondition, match="hidden size 48"):
        choose_precision("bfloat16", config(hidden=48), quantization="", has_vnni=True)


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="fp3"):
        choose_precision("fp3", config(), quantization="", has_vnni=True)
