"""Builds the calls of BuildService as values, as ``calls`` does for all others. Pure; sends nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import Message

from octavo import parsing, parsing_builds
from octavo.build_values import Build, BuildEvent, BuildTarget, FileChunk
from octavo.calls import Call
from octavo.errors import InvalidArgumentError
from octavo.fields import build, duration
from octavo.retry import Safety
from octavo.v1 import builder_pb2
from octavo.values import JobState

_SERVICE = "/octavo.v1.BuildService"
_ID = {"id": "build_id"}


def submit_build(
    model: str,
    *,
    targets: str | Sequence[str],
    recipe: str = "",
    recipe_yaml: str | None = None,
    recipe_texts: Mapping[str, str] | None = None,
    context_length: int = 0,
    ars: Sequence[int] = (),
    options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    idempotency_key: str = "",
    timeout_s: float | None = None,
    priority: int = 0,
) -> Call[Build]:
    """Ask for a build.

    ``model`` is a path on the edge builder's host, or a name that it knows. ``targets`` is one target or several.
    ``recipe`` is a preset's name; ``recipe_yaml`` a recipe's text instead, with the texts that it names in
    ``recipe_texts``. 0 and empty take the defaults (512 tokens; graphs for 128 and 1). ``options`` are further ones of
    the builder's command line without dashes, ``target_options`` the tool-chain's (key, or target.key). ``timeout_s``
    bounds the build from acceptance; without it a build takes as long as it takes.
    """
    if recipe and recipe_yaml is not None:
        raise InvalidArgumentError("a recipe is a preset's name or a text, not both", param="recipe_yaml")
    recipes = {"recipe_preset": recipe or None} if recipe_yaml is None else {"recipe_yaml": recipe_yaml}
    spec = build(
        builder_pb2.BuildSpec,
        {"recipe_preset": "recipe"},
        model=model,
        targets=[targets] if isinstance(targets, str) else targets,
        recipe_texts=recipe_texts,
        context_length=context_length,
        ars=ars,
        options=options,
        target_options=target_options,
        **recipes,
    )
    request = build(
        builder_pb2.SubmitBuildRequest,
        spec=spec,
        idempotency_key=idempotency_key,
        timeout=None if timeout_s is None else duration(timeout_s, "timeout_s"),
        priority=priority,
    )

    def parse(answer: Message) -> Build:
        assert isinstance(answer, builder_pb2.SubmitBuildResponse)
        return parsing_builds.build(answer.build)

    return Call(
        path=f"{_SERVICE}/SubmitBuild",
        request=request,
        response=builder_pb2.SubmitBuildResponse,
        parse=parse,
        safety=Safety.KEYED if idempotency_key else Safety.UNSAFE,
    )


def get_build(build_id: str) -> Call[Build]:
    """Read one build."""

    def parse(answer: Message) -> Build:
        assert isinstance(answer, builder_pb2.GetBuildResponse)
        return parsing_builds.build(answer.build)

    return Call(
        path=f"{_SERVICE}/GetBuild",
        request=build(builder_pb2.GetBuildRequest, _ID, id=build_id),
        response=builder_pb2.GetBuildResponse,
        parse=parse,
    )


def list_builds(
    *, states: Iterable[JobState | str], tenant: str, page_size: int, page_token: str
) -> Call[tuple[list[Build], str]]:
    """Read one page of builds, newest first, and the token of the next page (empty on the last)."""

    def parse(answer: Message) -> tuple[list[Build], str]:
        assert isinstance(answer, builder_pb2.ListBuildsResponse)
        return [parsing_builds.build(one) for one in answer.builds], answer.next_page_token

    numbers = parsing.state_numbers(states)
    return Call(
        path=f"{_SERVICE}/ListBuilds",
        request=build(
            builder_pb2.ListBuildsRequest, page_size=page_size, page_token=page_token, states=numbers, tenant=tenant
        ),
        response=builder_pb2.ListBuildsResponse,
        parse=parse,
    )


def watch_build(build_id: str) -> Call[BuildEvent | None]:
    """Stream the build and its progress until it has ended."""

    def parse(answer: Message) -> BuildEvent | None:
        assert isinstance(answer, builder_pb2.WatchBuildResponse)
        return parsing_builds.event(answer)

    return Call(
        path=f"{_SERVICE}/WatchBuild",
        request=build(builder_pb2.WatchBuildRequest, _ID, id=build_id),
        response=builder_pb2.WatchBuildResponse,
        parse=parse,
    )


def download_build(build_id: str, names: Iterable[str], first_offset: int) -> Call[FileChunk]:
    """Stream files of an ended build, the first one from an offset in bytes on."""

    def parse(answer: Message) -> FileChunk:
        assert isinstance(answer, builder_pb2.DownloadBuildResponse)
        return parsing_builds.chunk(answer.chunk)

    return Call(
        path=f"{_SERVICE}/DownloadBuild",
        request=build(builder_pb2.DownloadBuildRequest, _ID, id=build_id, names=list(names), first_offset=first_offset),
        response=builder_pb2.DownloadBuildResponse,
        parse=parse,
    )


def list_targets() -> Call[list[BuildTarget]]:
    """Read what can be built for."""

    def parse(answer: Message) -> list[BuildTarget]:
        assert isinstance(answer, builder_pb2.ListTargetsResponse)
        return [parsing_builds.target(one) for one in answer.targets]

    return Call(
        path=f"{_SERVICE}/ListTargets",
        request=builder_pb2.ListTargetsRequest(),
        response=builder_pb2.ListTargetsResponse,
        parse=parse,
    )
