"""What the SDK shows to the world."""

from __future__ import annotations

import inspect
import types

import octavo
from octavo import calls, calls_builds, calls_fleet
from octavo.v1 import builder_pb2, gateway_pb2, jobs_pb2


def test_all_lists_exactly_what_the_package_binds() -> None:
    bound = {
        name
        for name, value in vars(octavo).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(bound) == octavo.__all__


def test_everything_public_is_documented() -> None:
    silent = [name for name in octavo.__all__ if not inspect.getdoc(getattr(octavo, name))]
    assert silent == []


def _methods(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    assert _methods(octavo.Client) == _methods(octavo.AsyncClient)
    assert _methods(octavo.Jobs) == _methods(octavo.AsyncJobs)
    assert _methods(octavo.Builds) == _methods(octavo.AsyncBuilds)
    assert _methods(octavo.TokenStream) == _methods(octavo.AsyncTokenStream)


def _every_call() -> list[calls.Call]:
    request = gateway_pb2.Generation(prompt="x")
    return [
        calls.generate(request),
        calls.submit(request),
        calls.resume("j", [1], detach=True),
        calls.get_job("j"),
        calls.cancel_job("j"),
        calls.retry_job("j"),
        calls.watch_job("j"),
        calls.job_events("j"),
        calls.list_jobs(states=(), model="", tenant="", page_size=1, page_token=""),
        calls.list_models(),
        calls_fleet.plan_model("m", device="H200"),
        calls_fleet.plan_choices(),
        calls.list_workers(include_dead=False),
        calls.worker_records("w", 0),
        calls_fleet.worker_pool("w"),
        calls_builds.submit_build("m", targets="onnxruntime"),
        calls_builds.get_build("b"),
        calls_builds.list_builds(states=(), tenant="", page_size=1, page_token=""),
        calls_builds.watch_build("b"),
        calls_builds.download_build("b", (), 0),
        calls_builds.list_targets(),
    ]


def test_every_method_of_the_public_services_has_a_call_with_its_types() -> None:
    protocol = {
        f"/{service.full_name}/{method.name}": (method.input_type.full_name, method.output_type.full_name)
        for module in (gateway_pb2, jobs_pb2, builder_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        if service.name != "BuilderService"  # between services
        for method in service.methods
    }
    ours = {c.path: (type(c.request).DESCRIPTOR.full_name, c.response.DESCRIPTOR.full_name) for c in _every_call()}
    assert ours == protocol
