"""octavo workers: who computes."""

from __future__ import annotations

import dataclasses

import click

from octavo_cli.context import Context
from octavo_cli.output import show_json, show_table


@click.command()
@click.option("--all", "include_dead", is_flag=True, help="Also those whose heartbeat is old.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def workers(context: Context, include_dead: bool, as_json: bool) -> None:
    """Show the workers with their load and blocks."""
    with context.client(scope="admin") as client:
        found = client.workers(include_dead=include_dead)
    if as_json:
        show_json([_short_names(dataclasses.asdict(worker)) for worker in found])
        return
    rows = [
        (
            w.id,
            w.pid,
            w.address,
            w.role,
            w.model,
            w.num_running,
            w.num_waiting,
            f"{w.num_free_blocks}/{w.num_total_blocks}",
            "draining" if w.draining else "alive" if w.alive else "dead",
            f"{w.heartbeat_age_s:.1f} s",
        )
        for w in found
    ]
    columns = ("id", "pid", "address", "role", "model", "running", "waiting", "free blocks", "state", "heartbeat")
    show_table(columns, rows, empty="there are no workers")


def _short_names(worker: dict[str, object]) -> dict[str, object]:
    return {name.removeprefix("num_"): value for name, value in worker.items()}
