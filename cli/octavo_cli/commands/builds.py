"""octavo builds: list, show, watch, cancel, download, targets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

import octavo
from octavo_cli.commands.build import download as fetch
from octavo_cli.commands.build import follow
from octavo_cli.context import Context
from octavo_cli.output import age, complain, say, show_json, show_table

_STATES = click.Choice([state.value for state in octavo.JobState], case_sensitive=False)
_COLUMNS = ("id", "state", "model", "targets", "recipe", "tenant", "stage", "age", "why")


@click.group()
def builds() -> None:
    """Look at builds for devices and steer them."""


@builds.command("list")
@click.option("--state", "states", multiple=True, type=_STATES, help="Only these states.")
@click.option("--tenant", default="", help="Only this tenant.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most builds to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(context: Context, states: tuple[str, ...], tenant: str, limit: int, as_json: bool) -> None:
    """List builds, newest first."""
    with context.client(scope="admin") as client:
        found = client.builds.list(states=states, tenant=tenant, limit=limit)
    if as_json:
        show_json(found)
    else:
        show_table(_COLUMNS, [_row(build) for build in found], empty="there are no such builds")


@builds.command()
@click.argument("build_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(context: Context, build_id: str, as_json: bool) -> None:
    """Show one build: its stages with their gates, and its files."""
    with context.client(scope="admin") as client:
        build = client.builds.get(build_id)
    if as_json:
        show_json(build)
        return
    show_table(_COLUMNS, [_row(build)], empty="")
    if build.result is None:
        return
    click.echo(f"{build.result.outcome}, {build.result.duration_s:.1f} s")
    stages = [
        (
            stage.title,
            "as before" if stage.cached else f"{stage.duration_s:.1f} s",
            f"{stage.size_bytes / 1e6:.1f} MB",
            f"{stage.peak_memory_bytes / 1e6:.0f} MB",
            "; ".join(_gate(gate) for gate in stage.gates),
        )
        for stage in build.result.stages
    ]
    show_table(("stage", "took", "size", "memory", "gates"), stages, empty="no stage has ended")
    files = [(file.name, file.size_bytes, file.sha256[:16]) for file in build.result.files]
    show_table(("file", "bytes", "sha256"), files, empty="it has no files (any more)")


@builds.command()
@click.argument("build_id")
@click.option("--timeout", "timeout_s", type=float, help="Give up after so many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
@click.pass_obj
def watch(context: Context, build_id: str, timeout_s: float | None, as_json: bool) -> int:
    """Follow a build until it has ended. Exit code 0 when it succeeded."""
    with context.client(scope="admin") as client:
        build = follow(client, build_id, timeout_s)
    if as_json:
        show_json(build)
    elif build.job.failure is not None:
        complain(build.job.failure.message, hint=build.job.failure.hint, code=build.job.failure.code)
    elif build.result is not None:
        say(f"{build.id} {build.state}: {build.result.outcome}")
    return 0 if build.state is octavo.JobState.SUCCEEDED else 1


@builds.command()
@click.argument("build_ids", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def cancel(context: Context, build_ids: tuple[str, ...], as_json: bool) -> None:
    """Ask builds to end."""
    with context.client(scope="admin") as client:
        found = [client.builds.cancel(build_id) for build_id in build_ids]
    if as_json:
        show_json(found)
        return
    for build in found:
        say(f"{build.id} {build.state}" + (", will end" if not build.state.ended else ""))


@builds.command()
@click.argument("build_id")
@click.argument("names", nargs=-1)
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A new directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the files as JSON.")
@click.pass_obj
def download(context: Context, build_id: str, names: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Fetch the files of an ended build, or those of these NAMES, into a directory that appears whole."""
    with context.client(scope="admin") as client:
        files = fetch(client, build_id, out, names)
    if as_json:
        show_json(files)
    else:
        say(f"{len(files)} files, {sum(file.size_bytes for file in files) / 1e6:.1f} MB: {out}")


@builds.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def targets(context: Context, as_json: bool) -> None:
    """List what can be built for, and what is missing for it."""
    with context.client() as client:
        found = client.builds.targets()
    if as_json:
        show_json(found)
        return
    rows = [(target.name, "; ".join(target.missing) or "ready") for target in found]
    show_table(("target", "state"), rows, empty=f"no edge builder runs; `{context.line('up', '--edge-builders', '1')}`")


def _row(build: octavo.Build) -> tuple[Any, ...]:
    progress = build.progress
    stage = f"{progress.title} {progress.done}/{progress.total}" if progress else ""
    why = build.job.failure.message if build.job.failure else ""
    recipe = build.recipe or "of its own"
    return (
        *(build.id, build.state, build.model, ",".join(build.targets), recipe, build.job.tenant, stage),
        *(age(build.job.created_at), why),
    )


def _gate(gate: octavo.BuildGate) -> str:
    measured = "not measured" if gate.value is None else f"{gate.value:.4g}" if math.isfinite(gate.value) else "inf"
    return f"{gate.limit} ({measured}) {'holds' if gate.passes else 'FAILS'}"
