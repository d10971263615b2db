"""Keys that are wrong or another's, and the doors that only services may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rims_world import DEMO, Bystander, Rims, refused, refused_http

from octavo import Client, JobState
from octavo.v1 import worker_pb2

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("key", "code"), [("", "MISSING_KEY"), ("ok-wrong", "UNKNOWN_KEY"), ("x" * 4000, "UNKNOWN_KEY")]
)
def test_no_call_is_served_without_a_good_key(rims: Rims, key: str, code: str) -> None:
    with rims.client(key) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.generate("x"), lambda: client.submit("x"), lambda: client.attach("0" * 32),
            lambda: client.models(), lambda: client.workers(), lambda: client.jobs.list(),
            lambda: client.jobs.get("x"), lambda: client.jobs.cancel("x"), lambda: client.jobs.watch("x"),
        ]  # fmt: skip
        for call in calls:
            told = refused(call)
            assert (told.status, told.code) == ("UNAUTHENTICATED", code) and "octavo keys show" in told.hint
    with rims.web(key) as web:
        for method, path in (
            ("GET", "/v1/models"), ("GET", "/v1/jobs/x"), ("POST", "/v1/jobs/x/cancel"), ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
        ):  # fmt: skip
            answer = web.request(method, path, content=b"{")
            told = refused_http(answer)
            assert (told.status, told.code) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"


def test_other_schemes_and_odd_headers_are_no_key(rims: Rims) -> None:
    with rims.web("") as web:
        for header in (rims.key, f"Basic {rims.key}", "Bearer", "Bearer \xe9"):
            answer = web.get("/v1/models", headers={b"Authorization": header.encode("latin-1")})
            assert refused_http(answer).status == 401
        assert web.get("/v1/models", headers={"Authorization": f"bearer {rims.key}"}).status_code == 200
        assert web.get("/health").status_code == 200


def _touches(client: Client, job_id: str) -> list[Callable[[], Any]]:
    return [
        lambda: client.jobs.get(job_id), lambda: client.jobs.cancel(job_id), lambda: client.jobs.retry(job_id),
        lambda: client.jobs.events(job_id), lambda: client.jobs.watch(job_id), lambda: client.attach(job_id),
        lambda: client.wait(job_id, timeout_s=5),
    ]  # fmt: skip


def test_another_tenants_job_is_not_there(rims: Rims) -> None:
    with rims.client() as client, rims.client(rims.other_key) as other, Bystander(rims) as bystander:
        ended = client.submit("Hello", model=DEMO, max_tokens=1)
        client.wait(ended.id, timeout_s=60)
        (running,) = [job for job in client.jobs.list(states=[JobState.RUNNING])]
        for job_id in (ended.id, running.id):
            for touch in _touches(other, job_id):
                told = refused(touch)
                # The same as for a job that nobody has: nothing is learned of others.
                assert (told.status, told.code) == ("NOT_FOUND", "JOB_NOT_FOUND")
            with rims.web(rims.other_key) as web:
                assert refused_http(web.get(f"/v1/jobs/{job_id}")).code == "job_not_found"
                assert refused_http(web.post(f"/v1/jobs/{job_id}/cancel")).status == 404
            assert job_id not in [job.id for job in other.jobs.list()]
        bystander.more(5)
        assert client.jobs.get(running.id).state is JobState.RUNNING
        for call in (lambda: client.jobs.list(tenant="other"), lambda: client.worker_records("x")):
            assert refused(call).status == "PERMISSION_DENIED"
    with rims.client(rims.admin_key) as admin:
        assert admin.jobs.get(ended.id).tenant == "default"


@pytest.mark.parametrize("job_id", ["", "x", "0" * 32, "../../etc", "x" * 5000, "\u0661", "a\0b"])
def test_ids_that_are_none_name_no_job(rims: Rims, job_id: str) -> None:
    with rims.client() as client:
        for touch in _touches(client, job_id):
            assert refused(touch).code == "JOB_NOT_FOUND"


def test_a_resumption_must_hold_what_the_model_could_have_said(rims: Rims) -> None:
    with rims.client() as client:
        ended = client.submit("Hello", model=DEMO, max_tokens=3, temperature=0.0)
        result = client.wait(ended.id, timeout_s=60).result
        assert result is not None
        for ids in ([-1], [2**31 - 1], [*result.token_ids, 5], [result.token_ids[0] + 1]):
            assert refused(lambda ids=ids: client.attach(ended.id, token_ids=ids)).status in (
                "INVALID_ARGUMENT", "ABORTED",
            )  # fmt: skip
        rest = client.attach(ended.id, token_ids=result.token_ids[:1])
        assert [t for c in rest for t in c.token_ids] == list(result.token_ids[1:])


def test_a_worker_refuses_who_has_no_token_of_the_data_directory(rims: Rims) -> None:
    import grpc

    with rims.client() as client:
        address = client.workers()[0].address
    request = worker_pb2.StreamRequest(job_id="0" * 32).SerializeToString()
    for metadata in ((), (("authorization", f"Bearer {rims.admin_key}"),), (("x-octavo-token", "wrong"),)):
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.unary_stream("/octavo.v1.WorkerService/Stream")
            told = refused(lambda call=call, metadata=metadata: list(call(request, metadata=metadata, timeout=10)))
            assert told.status == "UNAUTHENTICATED"
