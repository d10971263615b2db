"""A plan for a model that is served starts from the precision that its worker computes in."""

from __future__ import annotations

import pytest

from octavo_common.jobs.spec import ModelCard
from octavo_common.plan.shapes import SHAPES
from octavo_gateway.planning import PlanRequest, answer


@pytest.mark.parametrize(
    ("numerics_id", "precision", "kv"),
    [
        ("float32/cpu-torch-2.13/avx512/t2", "float32", "float32"),
        ("bfloat16-kv16/pairs-torch-2.13/avx512", "bfloat16", "bfloat16"),
        ("bfloat16/triton_paged-torch-2.13/sm_90", "bfloat16", "bfloat16"),
        ("w8a8-kv8-p16/groups-torch-2.13/avx512", "w8a8", "int8"),
        ("w4a16-kv16/pairs-torch-2.13/avx512", "w4a16", "bfloat16"),
        ("something-new/of-a-later-worker", "bfloat16", "bfloat16"),
    ],
)
def test_the_precision_is_that_of_the_card(numerics_id: str, precision: str, kv: str) -> None:
    card = ModelCard(
        name="served", digest="d", family="llama", numerics_id=numerics_id, tokenizer_digest="t",
        max_sequence_tokens=2048, context_length=2048, block_size=16, num_blocks=100, vocab_size=100,
        shape=SHAPES["smollm2-135m"].to_json(),
    )  # fmt: skip
    plan = answer(PlanRequest(model="served", device="H200"), [card])
    assert (plan.question.stored.name, plan.question.kv.name) == (precision, kv)
