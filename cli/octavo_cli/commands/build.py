"""octavo build: a model for devices, built by the platform's edge builder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import octavo
from octavo.clock import Clock
from octavo.downloads import check_place
from octavo_cli.build_view import BuildView, DownloadView
from octavo_cli.context import Context
from octavo_cli.output import WrongUse, complain, say, show_json
from octavo_cli.recipes import recipe_parameters
from octavo_common.models.fetch import absolute

_OUT = click.Path(path_type=Path)
_REPORT_FORMAT = "octavo-edge-report"


@click.command()
@click.argument("model")
@click.option(
    "--target", "targets", multiple=True, required=True, help="`octavo builds targets` lists them; repeatable."
)
@click.option("--recipe", default="w8a16", show_default=True, help="A preset, or a YAML file.")
@click.option("--context-length", type=int, default=512, show_default=True, help="Longest sequence in tokens.")
@click.option("--ar", default="128,1", show_default=True, help="New tokens of each graph.")
@click.option("--attention", type=click.Choice(["mha", "sha"]), help="Heads together, or each by itself.")
@click.option("--parts", type=click.IntRange(1), help="Pieces that the layers are cut into.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Any other option of the builder.")
@click.option("--target-option", "target_options", multiple=True, metavar="[T.]KEY=VALUE", help="For the tool-chain.")
@click.option("--text", "texts", multiple=True, help="A text that the recipe names, if it is not found by itself.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds that the build may take.")
@click.option("--priority", type=int, default=0, help="Larger runs first.")
@click.option("--out", type=_OUT, metavar="DIR", help="Where the bundle goes: a new directory, whole or not at all.")
@click.option("--detach", is_flag=True, help="Print the build's id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print the build as JSON at the end.")
@click.pass_obj
def build(
    context: Context,
    model: str,
    targets: tuple[str, ...],
    recipe: str,
    out: Path | None,
    detach: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Build MODEL for devices: a path on the edge builder's host, or a name such as smollm2-135m.

    Ctrl-C cancels the build; what its stages have made is kept, and the same command goes on from there.
    """
    if out is None and not detach:
        raise WrongUse("no place for the bundle is given", hint="--out DIR, or --detach and `octavo builds download`")
    if out is not None and not detach:
        check_place(out)
    parameters = recipe_parameters(recipe, asked["texts"])
    with context.client() as client:
        submitted = client.builds.submit(
            absolute(model),
            targets=[name for words in targets for name in words.split(",") if name],
            context_length=asked["context_length"],
            ars=_numbers(asked["ar"]),
            options=_pairs(asked["options"]) | _named(asked, ("attention", "parts")),
            target_options=_pairs(asked["target_options"]),
            timeout_s=asked["timeout_s"],
            priority=asked["priority"],
            **parameters,
        )
        if detach:
            return accepted(context, submitted, out, as_json=as_json)
        assert out is not None
        try:
            ended = follow(client, submitted.id)
            return deliver(client, ended, out, as_json=as_json)
        except KeyboardInterrupt:
            return interrupted(context, client, submitted.id)


def accepted(context: Context, build: octavo.Build, out: Path | None, *, as_json: bool) -> int:
    """Print what a detached build is found by, and that nobody waits to write its files."""
    if as_json:
        show_json(build)
    else:
        click.echo(build.id)
    if out is not None:
        line = context.line("builds", "download", build.id, "--out", str(out))
        say(f"--out is not used with --detach; when the build has ended: {line}")
    return 0


def follow(client: octavo.Client, build_id: str, timeout_s: float | None = None) -> octavo.Build:
    """Show a build until it has ended."""
    with BuildView(Clock()) as view:
        for event in client.builds.watch(build_id, timeout_s=timeout_s):
            view.show(event)
            if isinstance(event, octavo.Build) and event.state.ended:
                return event
    raise octavo.UnavailableError("the watch ended before the build", job_id=build_id)


def deliver(client: octavo.Client, build: octavo.Build, out: Path, *, as_json: bool) -> int:
    """Download what an ended build has left, the report of a failed one beside, and say how it ended."""
    good = build.state is octavo.JobState.SUCCEEDED
    has_files = build.result is not None and bool(build.result.files)
    if good and has_files:
        download(client, build.id, out)
    if as_json:
        show_json(build)
    if good and build.result is not None:
        say(f"{build.result.outcome} in {build.result.duration_s:.1f} s: {out / 'report.html'}")
    elif build.job.failure is not None:
        # Before its files are fetched, which can fail for a reason of its own.
        complain(build.job.failure.message, hint=build.job.failure.hint, code=build.job.failure.code)
    if not good and has_files:
        _fetch_failed(client, build.id, out.absolute().with_name(f"{out.absolute().name}-failed"))
    return 0 if good else 1


def _fetch_failed(client: octavo.Client, build_id: str, where: Path) -> None:
    """Fetch what a failed build has left; what an earlier one left there is replaced, and nothing else."""
    fresh = where.with_name(f".{where.name}.{os.getpid()}.new")
    try:
        if not _is_report(where):
            check_place(where)
        download(client, build_id, fresh)
        if where.exists():
            shutil.rmtree(where)
        fresh.rename(where)
    except (octavo.OctavoError, OSError) as error:
        complain(f"its report was not fetched: {error}", hint=f"`octavo builds download {build_id} --out DIR`")
    else:
        say(f"the report is in {where}")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_report(folder: Path) -> bool:
    """Whether a build has filled it."""
    try:
        return json.loads((folder / "report.json").read_text(encoding="utf-8"))["format"] == _REPORT_FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def download(client: octavo.Client, build_id: str, out: Path, names: Sequence[str] = ()) -> list[octavo.BuildFile]:
    """Fetch files with a bar."""
    with DownloadView() as view:
        return client.builds.download(build_id, out, names=names, on_bytes=view.show)


def interrupted(context: Context, client: octavo.Client, build_id: str) -> int:
    """Cancel a build, and say what became of it: it may have ended, and only its download was broken off."""
    try:
        build = client.builds.cancel(build_id)
    except octavo.OctavoError as error:
        complain(
            f"interrupted; build {build_id} may go on: {error.message}",
            hint=f"`{context.line('builds', 'cancel', build_id)}` cancels it",
        )
        return 130
    if build.state in (octavo.JobState.SUCCEEDED, octavo.JobState.FAILED):
        line = context.line("builds", "download", build_id, "--out", "DIR")
        complain(f"interrupted; build {build_id} had {build.state} before", hint=f"`{line}` fetches its files")
    else:
        complain(f"interrupted; build {build_id} is cancelled", hint="the same command goes on where it stopped")
    return 130


def _named(asked: dict[str, Any], names: Sequence[str]) -> dict[str, str]:
    return {name: str(asked[name]) for name in names if asked[name] is not None}


def _pairs(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise WrongUse(f"{word!r} is no KEY=VALUE")
        found[name] = value if equals else "true"
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise WrongUse(f"--ar {text} is no list of whole numbers such as 128,1") from None
