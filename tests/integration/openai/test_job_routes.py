"""Jobs over HTTP: lists in the form that OpenAI's own client pages through."""

from __future__ import annotations

from http_world import HttpWorld
from openai import BaseModel
from openai.pagination import AsyncCursorPage

from octavo_common.ids import new_job_id, new_process_id
from octavo_common.jobs.builds import BuildResult, BuildSpec
from octavo_common.jobs.model import EDGE_BUILD, NewJob
from octavo_common.store import BuildStore


class ListedJob(BaseModel):
    id: str
    state: str
    model: str


async def submitted(http: HttpWorld, number: int, key: str | None = None) -> list[str]:
    """Ids of jobs that wait, newest first."""
    client = http.world.client(http.gateway, key)
    return [(await client.submit()).job_id for _ in range(number)][::-1]


async def test_openais_client_pages_through_the_jobs_newest_first(http: HttpWorld):
    jobs = await submitted(http, 7)
    found = [
        job.id
        async for job in http.openai().get_api_list(
            "/jobs", model=ListedJob, page=AsyncCursorPage[ListedJob], options={"params": {"limit": 3}}
        )
    ]
    assert found == jobs


async def test_a_page_says_whether_there_are_more_and_where_they_begin(http: HttpWorld):
    jobs = await submitted(http, 3)
    client = http.raw()
    page = (await client.get("/v1/jobs", params={"limit": 2})).json()
    assert [job["id"] for job in page["data"]] == jobs[:2]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", jobs[0], jobs[1], True)
    rest = (await client.get("/v1/jobs", params={"limit": 2, "after": page["last_id"]})).json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == ([jobs[2]], False)
    assert (await client.get("/v1/jobs", params={"after": rest["last_id"]})).json()["data"] == []


async def test_lists_have_the_keys_own_jobs_in_the_states_that_are_asked_for(http: HttpWorld):
    mine = await submitted(http, 2)
    other_key = await http.world.keys.create("other", "user", "test")
    theirs = await submitted(http, 1, other_key)
    client = http.raw()
    assert (await client.post(f"/v1/jobs/{mine[0]}/cancel")).json()["state"] == "cancelled"

    async def ids(key: str | None = None, **query: str) -> list[str]:
        return [job["id"] for job in (await http.raw(key).get("/v1/jobs", params=query)).json()["data"]]

    assert await ids() == mine
    assert await ids(state="queued") == [mine[1]]
    assert await ids(state="queued,cancelled") == mine
    assert await ids(model="other") == []
    assert await ids(other_key) == theirs
    assert await ids(http.world.admin_key) == [*theirs, *mine]
    assert await ids(http.world.admin_key, tenant="other") == theirs
    refused = await client.get("/v1/jobs", params={"tenant": "other"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")


async def test_a_listing_that_cannot_be_is_refused_by_name(http: HttpWorld):
    for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"after": "x"}, {"state": "lost"}, {"page": "2"}):
        answer = await http.raw().get("/v1/jobs", params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query))), query


async def test_a_build_for_devices_is_a_job_too_without_an_answers_fields(http: HttpWorld):
    process_id, builds = new_process_id(), BuildStore(http.world.database)
    spec = BuildSpec(model="m", targets=("onnxruntime",))
    columns = {"tenant": "acme", "model": "m", "model_digest": "", "prompt_ids": ()}
    new = NewJob(id=new_job_id(), kind=EDGE_BUILD, payload=spec.to_json(), **columns)
    await http.world.jobs.submit(new, max_queued=None)
    assert (await builds.take(process_id, lease_s=15.0)) is not None
    result = BuildResult(outcome="compiled+run", seconds=1.0, store="s")
    assert await builds.end(new.id, 1, result=result)
    told = (await http.raw().get(f"/v1/jobs/{new.id}")).json()
    assert (told["kind"], told["state"], told["text"], told["usage"]) == ("edge_build", "succeeded", None, None)
    assert [job["id"] for job in (await http.raw().get("/v1/jobs")).json()["data"]] == [str(new.id)]
