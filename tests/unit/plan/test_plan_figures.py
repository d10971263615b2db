"""Planning: the well-known figures of a 70B model, and rules that hold whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_common.errors import InvalidArgument
from octavo_common.plan.devices import DEVICES, Device, find_device
from octavo_common.plan.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    Arithmetic,
    default_kv,
    kv_format,
    weight_bytes,
    weight_format,
)
from octavo_common.plan.memory import kv_bytes_per_sequence, kv_bytes_per_token, plan_memory, splits
from octavo_common.plan.report import Question, batches_up_to, make_plan
from octavo_common.plan.roofline import Deployment, attended_pairs, decode_cost, prefill_cost, ridge_batch
from octavo_common.plan.shape import ModelShape
from octavo_common.plan.shapes import SHAPES

GIB = 2**30
BIG = SHAPES["llama-3-70b"]
FP16, KV16 = weight_format("float16"), kv_format("float16")


def deployment(
    shape: ModelShape = BIG, device: str = "A100", *, weights: str = "float16", kv: str = "float16", tp: int = 1
):
    stored = weight_format(weights)
    return Deployment(
        shape=shape,
        stored=stored,
        weights=weight_bytes(shape, stored),
        kv=kv_format(kv),
        device=find_device(device),
        tensor_parallel=tp,
    )


def test_a_70b_sequence_of_4096_tokens_takes_one_and_a_quarter_gib():
    assert kv_bytes_per_sequence(BIG, KV16, 4096) == 1.25 * GIB


def test_with_all_heads_it_would_take_ten():
    assert kv_bytes_per_sequence(replace(BIG, num_kv_heads=64), KV16, 4096) == 10 * GIB


def test_32_of_them_take_forty():
    assert 32 * kv_bytes_per_sequence(BIG, KV16, 4096) == 40 * GIB


def test_a_70b_token_takes_140_billion_operations_and_140_gigabytes_and_an_a100_wants_150_to_a_byte():
    plan = deployment()
    cost = decode_cost(plan, batch=1, context=1)
    assert cost.flops == pytest.approx(140e9, rel=0.02)
    assert cost.num_bytes == pytest.approx(140e9, rel=0.02)
    assert cost.intensity == pytest.approx(1, rel=0.02)
    # 312 T operations, 2 TB/s.
    assert plan.ridge == pytest.approx(156, rel=0.02)
    assert cost.bound == "memory"
    assert cost.tokens_per_s == pytest.approx(2.039e12 / 140e9, rel=0.02)


def test_a_long_prompt_is_bound_by_compute_on_every_device():
    for device in DEVICES:
        assert prefill_cost(deployment(device=device), batch=1, num_prompt_tokens=4096).bound == "compute"


def test_the_weights_need_two_large_devices_or_four_small_ones():
    for device, least in (("H200", 2), ("H100", 2), ("A100-40GB", 4)):
        question = Question(shape=BIG, device=find_device(device), stored=FP16, kv=KV16, reserve=0.05)
        plan = make_plan(question)
        assert plan.least_tensor_parallel == least
        assert plan.memory.num_sequences == 0 and "do not fit" in plan.notes[0]
        assert make_plan(replace(question, tensor_parallel=least)).memory.num_sequences > 0


sizes = st.integers(1, 6)
shapes = st.builds(
    lambda layers, kv, groups, dim, hidden, inner, vocab, window: ModelShape(
        name="x",
        family="llama",
        num_layers=layers,
        hidden=hidden * 8,
        num_heads=kv * groups,
        num_kv_heads=kv,
        head_dim=dim * 4,
        intermediate=inner * 8,
        vocab_size=vocab * 10,
        context_length=4096,
        sliding_window=window,
    ),
    sizes, sizes, sizes, sizes, sizes, sizes, sizes, st.none() | st.integers(1, 50),
)  # fmt: skip


@given(num_new=st.integers(1, 80), num_known=st.integers(0, 80), window=st.none() | st.integers(1, 60))
def test_pairs_are_those_that_a_mask_lets_through(num_new, num_known, window):
    counted = sum(
        1
        for query in range(num_known, num_known + num_new)
        for key in range(query + 1)
        if window is None or query - key < window
    )
    assert attended_pairs(num_new, num_known, window) == counted


@given(
    shape=shapes,
    kv=st.sampled_from(sorted(KV_FORMATS)),
    memory=st.integers(1, 40_000_000),
    num_tokens=st.integers(1, 400),
    reserve=st.floats(0, 0.9),
    block_size=st.sampled_from([1, 16, 64]),
)
def test_as_many_sequences_fit_as_can_be_placed_one_after_another(shape, kv, memory, num_tokens, reserve, block_size):
    device = Device(name="x", memory_bytes=memory, bandwidth=1.0, peaks={Arithmetic.FLOAT32: 1.0})
    weights = weight_bytes(shape, weight_format("bfloat16"))
    plan = plan_memory(
        shape, weights, kv_format(kv), device, num_tokens=num_tokens, reserve=reserve, block_size=block_size
    )
    free, placed = memory - round(memory * reserve) - weights.total, 0
    block = block_size * kv_bytes_per_token(shape, kv_format(kv))
    blocks_free = free // block if free > 0 else 0
    while blocks_free * block_size >= num_tokens and placed <= plan.num_sequences:
        blocks_free -= -(-num_tokens // block_size)
        placed += blocks_free >= 0
    assert plan.num_sequences == placed
    assert plan.num_blocks * plan.block_bytes <= max(0, plan.kv_room_bytes)


@given(shape=shapes, context=st.integers(1, 3000), device=st.sampled_from(sorted(DEVICES)))
def test_the_ridge_batch_is_the_first_that_is_bound_by_compute(shape, context, device):
    plan = deployment(shape, device, kv="int8")
    found = ridge_batch(plan, context=context)
    if found is None:
        assert decode_cost(plan, batch=1_000_000_000, context=context).bound == "memory"
        return
    assert decode_cost(plan, batch=found + 1, context=context).bound == "compute"
    if found > 2:
        assert decode_cost(plan, batch=found - 1, context=context).bound == "memory"


@given(shape=shapes, tp=st.integers(1, 36), context=st.integers(1, 500), batch=st.integers(1, 50))
def test_devices_together_do_the_work_of_one_and_hold_no_less(shape, tp, context, batch):
    if not splits(shape, tp):
        return
    one = decode_cost(deployment(shape), batch=batch, context=context)
    each = decode_cost(deployment(shape, tp=tp), batch=batch, context=context)
    assert each.flops * tp == pytest.approx(one.flops)
    assert each.num_bytes * tp >= one.num_bytes * (1 - 1e-9)
    assert kv_bytes_per_token(shape, KV16, tensor_parallel=tp) * tp >= kv_bytes_per_token(shape, KV16)


@pytest.mark.parametrize("name", sorted(WEIGHT_FORMATS))
def test_every_precision_is_planned_on_every_device(name):
    for device in DEVICES.values():
        question = Question(
            shape=SHAPES["smollm2-135m"], device=device, stored=weight_format(name), kv=kv_format("bfloat16")
        )
        plan = make_plan(question)
        assert plan.memory.num_sequences > 0
        rates = [cost.tokens_per_s for cost in plan.decode_by_batch]
        assert rates == sorted(rates), "a larger batch computes more tokens a second"
        assert plan.decode_by_batch[-1].batch == plan.memory.num_sequences
        lacks = weight_format(name).arithmetic not in device.peaks
        assert lacks == any("arithmetic" in note for note in plan.notes)


def test_keys_and_values_are_stored_as_workers_store_them_beside_such_weights():
    beside = {name: default_kv(stored).name for name, stored in WEIGHT_FORMATS.items()}
    assert beside["float32"] == "float32" and beside["bfloat16"] == beside["q4_1"] == "bfloat16"
    assert beside["w8a8"] == beside["w4a8"] == "int8" and beside["w4a16"] == "bfloat16"


def test_a_window_spares_the_layers_that_have_it():
    full = SHAPES["mistral-7b"]
    costs = [
        decode_cost(deployment(replace(full, sliding_window=window, num_window_layers=layers)), batch=1, context=8192)
        for window, layers in ((None, None), (4096, 8), (4096, None))
    ]
    head = decode_cost(deployment(full), batch=1, context=1)
    per_layer = 4 * full.num_heads * full.head_dim
    pairs = [32 * 8192, 24 * 8192 + 8 * 4096, 32 * 4096]
    assert [cost.flops - head.flops for cost in costs] == [per_layer * (num - 32) for num in pairs]
    kv = kv_bytes_per_token(full, KV16) / 32
    assert [cost.num_bytes - head.num_bytes for cost in costs] == [kv * (num - 32) for num in pairs]


def test_batches_double_up_to_what_fits():
    assert batches_up_to(83) == [1, 2, 4, 8, 16, 32, 64, 83]
    assert batches_up_to(4) == [1, 2, 4]
    assert batches_up_to(1) == [1] and batches_up_to(0) == [1]


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("num_prompt_tokens", 0, "num_prompt_tokens"),
        ("num_output_tokens", 0, "num_output_tokens"),
        ("batch", 0, "batch"),
        ("batch", 1 << 30, "batch"),
        ("reserve", 1.0, "reserve"),
        ("reserve", -0.1, "reserve"),
        ("tensor_parallel", 3, "tensor_parallel"),
        ("tensor_parallel", 0, "tensor_parallel"),
        ("device", Device(name="x", memory_bytes=0, bandwidth=1.0, peaks={Arithmetic.FLOAT32: 1.0}), "device"),
        ("device", Device(name="x", memory_bytes=1.0, bandwidth=1.0, peaks={Arithmetic.FLOAT32: 0.0}), "device"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(field, value, param):
    question = Question(shape=BIG, device=find_device("H200"), stored=FP16, kv=KV16)
    with pytest.raises(InvalidArgument) as raised:
        make_plan(replace(question, **{field: value}))
    assert raised.value.param == param


def test_names_that_are_unknown_are_answered_with_those_that_are_known():
    for find, known in ((find_device, "H200"), (weight_format, "w8a8"), (kv_format, "int8")):
        with pytest.raises(InvalidArgument) as raised:
            find("nonsense")
        assert known in raised.value.hint
    assert find_device("h200") is DEVICES["H200"]


def test_remarks_say_what_figures_do_not():
    question = Question(
        shape=SHAPES["llama-3-8b"], device=find_device("L4"), stored=FP16, kv=KV16, num_prompt_tokens=8000,
        num_output_tokens=1000, batch=64,
    )  # fmt: skip
    notes = " ".join(make_plan(question).notes)
    assert "beyond the model's context of 8192" in notes and "A batch of 64 does not fit" in notes
    notes = " ".join(make_plan(replace(question, tensor_parallel=32, device=find_device("H100"))).notes)
    assert "lies on 4 devices" in notes and "send each other" in notes


def test_a_shape_survives_json_and_ignores_what_a_newer_writer_adds():
    for shape in SHAPES.values():
        assert ModelShape.from_json({**shape.to_json(), "later": 1}) == shape
