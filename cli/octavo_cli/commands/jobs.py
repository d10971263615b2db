"""octavo jobs: list, show, cancel, retry, watch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import octavo
from octavo.clock import Clock
from octavo_cli.context import Context
from octavo_cli.output import age, say, show_json, show_table

_PATIENCE_S = octavo.RetryPolicy().stream_patience_s
# Gives up soon, so that something can be said before it is tried again.
_SOON = octavo.RetryPolicy(stream_patience_s=2.0)
_STATES = click.Choice([state.value for state in octavo.JobState], case_sensitive=False)
_COLUMNS = ("id", "state", "model", "tenant", "prompt", "losses", "age", "why")


@click.group()
def jobs() -> None:
    """Look at jobs and steer them."""


def _row(job: octavo.Job) -> tuple[Any, ...]:
    why = job.failure.message if job.failure else ""
    return (job.id, job.state, job.model, job.tenant, job.num_prompt_tokens, job.num_losses, age(job.created_at), why)


@jobs.command("list")
@click.option("--state", "states", multiple=True, type=_STATES, help="Only these states.")
@click.option("--model", default="", help="Only this model.")
@click.option("--tenant", default="", help="Only this tenant.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most jobs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(context: Context, states: tuple[str, ...], model: str, tenant: str, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    with context.client(scope="admin") as client:
        found = client.jobs.list(states=states, model=model, tenant=tenant, limit=limit)
    if as_json:
        show_json(found)
    else:
        show_table(_COLUMNS, [_row(job) for job in found], empty="there are no such jobs")


@jobs.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(context: Context, job_id: str, as_json: bool) -> None:
    """Show one job, its history and its result."""
    with context.client(scope="admin") as client:
        job, events = client.jobs.get(job_id), client.jobs.events(job_id)
    if as_json:
        show_json({"job": job, "events": events})
        return
    show_table(_COLUMNS, [_row(job)], empty="")
    rows = [
        (
            event.time,
            event.event,
            event.fence,
            event.process_id,
            ", ".join(f"{k}={v}" for k, v in event.details.items()),
        )
        for event in events
    ]
    show_table(("time", "event", "fence", "process", "details"), rows, empty="it has no history")
    if job.result is not None:
        click.echo(job.result.text)


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def cancel(context: Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Ask jobs to end."""
    with context.client(scope="admin") as client:
        found = [client.jobs.cancel(job_id) for job_id in job_ids]
    if as_json:
        show_json(found)
        return
    for job in found:
        say(f"{job.id} {job.state}" + (", will end" if not job.state.ended else ""))


@jobs.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def retry(context: Context, job_id: str, as_json: bool) -> None:
    """Queue a copy of an ended job; prints its id."""
    with context.client(scope="admin") as client:
        job = client.jobs.retry(job_id)
    if as_json:
        show_json(job)
    else:
        click.echo(job.id)


@jobs.command()
@click.argument("job_id")
@click.option("--timeout", "timeout_s", type=float, help="Give up after so many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object for the end.")
@click.pass_obj
def watch(context: Context, job_id: str, timeout_s: float | None, as_json: bool) -> int:
    """Follow a job until it has ended. Exit code 0 when it succeeded."""
    last: octavo.Job | None = None
    with context.client(scope="admin", retry=_SOON) as client:
        for job in _states_of(client, job_id, timeout_s):
            if last is None or job.state is not last.state:
                say(f"{job.id} {job.state}")
            last = job
    assert last is not None
    if as_json:
        show_json(last)
    elif last.result is not None:
        click.echo(last.result.text)
    elif last.failure is not None:
        say(f"{last.failure.message} [{last.failure.code}]")
    return 0 if last.state is octavo.JobState.SUCCEEDED else 1


def _states_of(client: octavo.Client, job_id: str, timeout_s: float | None) -> Iterator[octavo.Job]:
    """The job now and after each change; says so when the platform does not answer, and waits for it for a while."""
    clock = Clock()
    begin_s = clock.monotonic()
    is_known = False
    lost_s: float | None = None
    while True:
        left_s = None if timeout_s is None else max(0.001, begin_s + timeout_s - clock.monotonic())
        try:
            for job in client.jobs.watch(job_id, timeout_s=left_s):
                is_known, lost_s = True, None
                yield job
            return
        except octavo.UnavailableError as error:
            if not is_known:
                error.job_id = ""  # nobody has said that there is such a job
                raise
            if lost_s is None:
                lost_s = clock.monotonic()
                say(f"the platform does not answer; waiting up to {_PATIENCE_S:.0f} s for job {job_id}")
            elif clock.monotonic() - lost_s > _PATIENCE_S:
                raise
