"""What is refused before it becomes a job, who sees whose builds, and how many a tenant may have."""

from __future__ import annotations

from typing import Any

import pytest
from builder_world import QUICK, BuilderWorld

import octavo
from octavo_common.jobs.model import TenantLimits

pytestmark = pytest.mark.db

BAD: list[tuple[dict[str, Any], type[octavo.OctavoError], str]] = [
    ({"targets": "abacus"}, octavo.NotFoundError, "there is no target 'abacus'"),
    ({"targets": ()}, octavo.InvalidArgumentError, "targets are to be named"),
    ({"recipe_yaml": "precision: {lm_hed: {qtype: int8}}"}, octavo.InvalidArgumentError, "precision.lm_hed"),
    ({"recipe_yaml": "calibration: {texts: [a.txt]}"}, octavo.InvalidArgumentError, "'a.txt', which was not sent"),
    ({"recipe_yaml": None, "recipe": "w8a17"}, octavo.NotFoundError, "there is no recipe 'w8a17'"),
    ({"model": "/no/such/model"}, octavo.NotFoundError, "there is no model at /no/such/model"),
    ({"model": ""}, octavo.InvalidArgumentError, "no model"),
    ({"ars": (32, 1)}, octavo.InvalidArgumentError, "ars must be from 1 to 31"),
    ({"options": {"attention": "all"}}, octavo.InvalidArgumentError, "--attention"),
    ({"options": {"store": "/etc"}}, octavo.InvalidArgumentError, "there is no option 'store'"),
    ({"priority": 1000}, octavo.InvalidArgumentError, "priority"),
    ({"timeout_s": -1.0}, octavo.InvalidArgumentError, "timeout"),
]


async def test_what_can_be_seen_to_be_wrong_never_becomes_a_job(world: BuilderWorld) -> None:
    with pytest.raises(octavo.FailedPreconditionError) as caught:
        await world.submit()
    assert (caught.value.code, "--edge-builders" in caught.value.hint) == ("NO_EDGE_BUILDER", True)
    await world.builder()
    for changes, kind, said in BAD:
        try:
            await world.submit(**changes)
        except octavo.OctavoError as error:
            assert (type(error), said in error.message) == (kind, True), (changes, error.message)
        else:
            raise AssertionError(f"accepted: {changes}")
    assert await world.builds.list() == []
    assert "onnxruntime" in {target.name for target in await world.builds.targets()}


async def test_tenants_see_their_own_builds_and_queue_no_more_than_they_may(world: BuilderWorld) -> None:
    builder = await world.builder()
    # Accepted while the builder is away: its row is there.
    await builder.kill()
    await world.gateways.tenants.set_limits("acme", TenantLimits(max_queued=1))
    build = await world.submit(idempotency_key="k")
    with pytest.raises(octavo.ResourceExhaustedError):
        await world.submit()
    with pytest.raises(octavo.AlreadyExistsError):
        await world.submit(QUICK + "name: other\n", idempotency_key="k")
    other = await world.client_of(await world.gateways.keys.create("globex", "user", "test"))
    for reading in (
        other.builds.get(build.id),
        other.builds.cancel(build.id),
        other.builds.download(build.id, world.folder / "theirs"),
        other.builds.wait(build.id),
    ):
        with pytest.raises(octavo.NotFoundError):
            await reading
    assert await other.builds.list() == []
    admin = await world.client_of(world.gateways.admin_key)
    assert [one.id for one in await admin.builds.list()] == [build.id]
    with pytest.raises(octavo.FailedPreconditionError, match="has not ended"):
        await _chunks(world, build.id)
    with pytest.raises(octavo.NotFoundError, match="has not ended"):
        await world.builds.download(build.id, world.folder / "mine")
    with pytest.raises(octavo.FailedPreconditionError, match="no generation"):
        async for _ in world.client.attach(build.id):
            pass
    assert (await world.builds.cancel(build.id)).state is octavo.JobState.CANCELLED


async def _chunks(world: BuilderWorld, build_id: str) -> None:
    """As a client that does not ask first."""
    from octavo import calls_builds
    from octavo.errors import from_rpc_error

    call = calls_builds.download_build(build_id, (), 0)
    try:
        async for _ in world.builds._wire.open(call, 10.0):
            pass
    except Exception as error:
        raise from_rpc_error(error) from error
