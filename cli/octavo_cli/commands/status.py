"""octavo status: the services and the queue."""

from __future__ import annotations

import click

import octavo
from octavo_cli.context import Context
from octavo_cli.failures import reason
from octavo_cli.output import say, show_json, show_table
from octavo_cli.supervisor import state
from octavo_common.errors import OctavoError

_SHOWN = 1000


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status(context: Context, as_json: bool) -> int:
    """Show the services and how many jobs there are in each state. Exit code 0 when all are ready."""
    running = state.is_up(context.data_dir)
    found = state.read(context.data_dir.state_file) if running else None
    queue, trouble = _queue(context)
    if as_json:
        phase = found.phase if found else ("starting" if running else "stopped")
        body = {
            "data_dir": context.data_dir.root,
            "phase": phase,
            "detail": found.detail if found else "",
            "trouble": found.trouble if found else "",
            "supervisor_pid": found.pid if found else None,
            "services": list(found.services) if found else [],
            "grpc": found.grpc_addresses if found else [],
            "http": found.http_addresses if found else [],
            "console": found.console_address if found else "",
            "not_ready": found.not_ready if found else [],
            "jobs": queue,
            "jobs_error": trouble,
        }
        show_json(body)
        return 0 if phase == "ready" else 1
    if found is None:
        begins = f"The platform of {context.data_dir.root} begins to start."
        none = f"No platform is running in {context.data_dir.root}. Start it with `{context.line('up')}`."
        say(begins if running else none)
        return 1
    say(f"platform of {context.data_dir.root}: {found.phase}")
    rows = [(s.name, s.state, s.pid, s.address or s.http_address, s.restarts, s.reason) for s in found.services]
    show_table(("service", "state", "pid", "address", "restarts", "why"), rows, empty=found.detail or found.phase)
    if found.trouble:
        say(found.trouble)
    if trouble:
        say(f"jobs: {trouble}")
    else:
        click.echo("jobs: " + ", ".join(f"{count} {name}" for name, count in queue.items()))
    return 0 if found.phase == "ready" else 1


def _queue(context: Context) -> tuple[dict[str, str], str]:
    """Jobs that have not ended, by state; or why they cannot be counted."""
    states = (octavo.JobState.QUEUED, octavo.JobState.ASSIGNED, octavo.JobState.RUNNING)
    quick = octavo.RetryPolicy(max_attempts=1)
    key = context.key or context.data_dir.secret("admin_key")
    try:
        with octavo.Client(context.addresses(), api_key=key, timeout_s=5.0, retry=quick) as client:
            jobs = client.jobs.list(states=states, limit=_SHOWN)
    except (octavo.OctavoError, OctavoError) as error:
        return {}, reason(error, context)
    counts = {str(one): sum(job.state is one for job in jobs) for one in states}
    more = "+" if len(jobs) >= _SHOWN else ""
    return {name: f"{count}{more}" if count else "0" for name, count in counts.items()}, ""
