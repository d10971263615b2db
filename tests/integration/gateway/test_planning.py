"""Planning through a real gateway: served models, known shapes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from fakes.gateway_world import Client, World, error_of

from octavo.v1 import plan_pb2
from octavo_common.plan.answer import plan_json
from octavo_common.plan.devices import find_device
from octavo_common.plan.formats import kv_format, weight_format
from octavo_common.plan.report import Question, make_plan
from octavo_common.plan.shapes import SHAPES
from octavo_gateway.convert_plan import model_plan

pytestmark = pytest.mark.db
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def client(world: World) -> Client:
    world.card = replace(world.card, shape={**SHAPES["smollm2-135m"].to_json(), "name": "tiny"})
    gateway = await world.gateway()
    await world.worker()
    return world.client(gateway)


async def ask(client: Client, **fields) -> plan_pb2.PlanModelResponse:
    return await client.models.PlanModel(plan_pb2.PlanModelRequest(**fields), metadata=client.metadata)


async def test_a_served_model_is_planned_as_it_is_computed(client: Client) -> None:
    plan = (await ask(client, model="tiny", device="L4")).plan
    assert (plan.model, plan.precision, plan.kv_format, plan.num_parameters) == (
        "tiny", "float32", "float32", 134_515_008,
    )  # fmt: skip
    assert plan.weight_bytes == 4 * plan.num_parameters
    assert plan.num_prompt_tokens == 1024 and plan.num_output_tokens == 256 and plan.tensor_parallel == 1


async def test_the_answer_is_the_calculation(client: Client) -> None:
    asked = {"num_prompt_tokens": 3000, "num_output_tokens": 200, "batch": 5, "tensor_parallel": 4, "reserve": 0.2}
    plan = (await ask(client, model="llama-3-70b", device="h100", precision="fp8", kv_format="int8", **asked)).plan
    made = make_plan(
        Question(
            shape=SHAPES["llama-3-70b"],
            device=find_device("H100"),
            stored=weight_format("fp8"),
            kv=kv_format("int8"),
            **asked,
        )
    )
    assert plan == model_plan(made)
    figures = plan_json(made)
    assert plan.num_sequences == figures["memory"]["num_sequences"] > 0
    assert plan.decode.flops == figures["decode"]["flops"]
    assert [step.batch for step in plan.decode_by_batch] == [step["batch"] for step in figures["decode_by_batch"]]


async def test_no_model_asks_for_the_choices(client: Client) -> None:
    answer = await ask(client)
    assert not answer.HasField("plan")
    assert answer.choices.models[0] == "tiny" and "llama-3-70b" in answer.choices.models
    assert "H200" in answer.choices.devices and "w8a8" in answer.choices.precisions


async def test_a_device_may_be_given_by_its_figures(client: Client) -> None:
    own = plan_pb2.DeviceFigures(memory_bytes=2e9, bandwidth=1e10, peak=1e12)
    plan = (await ask(client, model="tiny", device="mine", own_figures=own)).plan
    assert (plan.device, plan.device_bytes, plan.ridge) == ("mine", 2_000_000_000, 100)
    own = plan_pb2.DeviceFigures(memory_bytes=2e9)
    plan = (await ask(client, model="tiny", device="H200", own_figures=own)).plan
    assert (plan.device_bytes, plan.bandwidth) == (2_000_000_000, 4.8e12)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "nobody", "device": "H200"}, grpc.StatusCode.NOT_FOUND),
        ({"model": "tiny"}, INVALID),
        ({"model": "tiny", "device": "Z80"}, INVALID),
        ({"model": "tiny", "device": "H200", "precision": "w1"}, INVALID),
        ({"model": "tiny", "device": "H200", "kv_format": "w1"}, INVALID),
        ({"model": "tiny", "device": "H200", "num_prompt_tokens": -1}, INVALID),
        ({"model": "tiny", "device": "H200", "tensor_parallel": 2}, INVALID),
        ({"model": "tiny", "device": "H200", "reserve": 1.5}, INVALID),
        ({"model": "tiny", "device": "H200", "reserve": float("nan")}, INVALID),
        ({"model": "tiny", "device": "H200", "own_figures": plan_pb2.DeviceFigures(bandwidth=float("inf"))}, INVALID),
        ({"model": "tiny", "device": "x", "own_figures": plan_pb2.DeviceFigures(bandwidth=1, peak=1)}, INVALID),
    ],
)
async def test_what_cannot_be_planned_is_the_callers_fault(client: Client, fields, code) -> None:
    assert (await error_of(ask(client, **fields)))[0] == code


async def test_the_smallest_and_the_largest_figures_are_answered(client: Client) -> None:
    for figure in (1e-3, 1e18):
        own = plan_pb2.DeviceFigures(memory_bytes=figure, bandwidth=figure, peak=figure)
        plan = (
            await ask(client, model="tiny", device="x", own_figures=own, num_prompt_tokens=1 << 24, batch=1 << 20)
        ).plan
        assert (plan.num_sequences > 0) == (figure > 1)
