"""Requests of several sequences: what can never run is refused before it is accepted, and the row says how many."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import pytest
from fakes.gateway_world import World

from octavo.v1 import gateway_pb2
from octavo_common.jobs.model import TenantLimits
from octavo_common.rpc.errors import from_rpc_error

pytestmark = pytest.mark.db
BEAMS = gateway_pb2.BeamSearch(width=5)


async def refused(client: Any, **fields: Any) -> tuple[grpc.StatusCode, str, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.generate(**fields).accepted()
    error = from_rpc_error(caught.value)
    return caught.value.code(), error.code, error.param


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 5}, "n"), ({"n": 2, "best_of": 5}, "best_of"), ({"beam_search": BEAMS}, "beam_width")]
)
async def test_more_sequences_than_the_models_workers_compute_at_once_are_refused_by_the_fields_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    world.card = dataclasses.replace(world.card, max_sequences=4)
    gateway, _ = await world.gateway(), await world.worker()
    client = world.client(gateway)
    assert await refused(client, **fields) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHOICES", param)
    assert await world.jobs.list(tenant=None) == []
    job_id = await client.generate(n=4).accepted()
    assert (await world.job(job_id)).num_sequences == 4


async def test_a_tenant_may_not_ask_for_more_at_once_than_it_may_ever_have_running(world: World) -> None:
    await world.tenants.set_limits("acme", TenantLimits(max_running=3))
    gateway, _ = await world.gateway(), await world.worker()
    client = world.client(gateway)
    assert await refused(client, n=4) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHOICES", "n")
    await client.generate(n=3).accepted()


async def test_a_card_that_does_not_say_and_a_tenant_that_may_run_nothing_now_refuse_nothing(world: World) -> None:
    await world.tenants.set_limits("acme", TenantLimits(max_running=0))
    gateway, _ = await world.gateway(), await world.worker()
    job_id = await world.client(gateway).generate(n=16).accepted()
    assert (await world.job(job_id)).state == "queued"


async def test_the_models_list_says_how_many_sequences_a_request_may_have(world: World) -> None:
    world.card = dataclasses.replace(world.card, max_sequences=4)
    gateway, _ = await world.gateway(), await world.worker()
    client = world.client(gateway)
    answer = await client.models.ListModels(gateway_pb2.ListModelsRequest(), metadata=client.metadata)
    assert [model.max_sequences for model in answer.models] == [4]
