"""octavo bench: what this machine makes of a model. Asks no platform; a process of the worker measures."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from octavo_cli.context import Context
from octavo_cli.output import err, show_json, show_table
from octavo_common.errors import FailedPrecondition
from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import fetch


class BenchFailed(FailedPrecondition):
    """The measuring process ended without figures."""

    code = "BENCH_FAILED"


@click.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--batches", default="1,8,32", show_default=True, help="Requests at once, one measurement each.")
@click.option("--prompt", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of a prompt.")
@click.option("--output", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of an answer.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that compute [default: all cores].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def modes(
    context: Context, model: str, batches: str, prompt: int, output: int, threads: int | None, as_json: bool
) -> None:
    """How fast MODEL is here in each precision.

    A worker's `auto` does not look at these figures: it goes by rules, so that equal machines choose equally.
    """
    sizes = _sizes(batches)
    files = fetch(model, data_dir=context.data_dir.root)
    argv = [sys.executable, "-m", "octavo_worker.modes", str(files.path), "--batches", ",".join(map(str, sizes))]
    argv += ["--prompt", str(prompt), "--output", str(output), *(["--threads", str(threads)] if threads else [])]
    with err.status("measuring; with the default sizes it takes minutes"):
        run = subprocess.run(argv, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BenchFailed(f"measuring failed: {(run.stderr.strip().splitlines() or ['no words'])[-1]}")
    entries: list[dict[str, Any]] = json.loads(run.stdout.strip().splitlines()[-1])
    if as_json:
        show_json(entries)
        return
    columns = ["precision", "exact", "weights", *(f"{size} at once" for size in sizes)]
    show_table(columns, [_row(entry, sizes) for entry in entries], empty="nothing was measured")


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > 64:
        raise click.BadParameter("give numbers from 1 to 64 with commas between them", param_hint="--batches")
    return sizes


def _row(entry: dict[str, Any], sizes: list[int]) -> list[Any]:
    if "reason" in entry:
        return [entry["precision"], entry["reason"], "", *("" for _ in sizes)]
    name = f"{entry['precision']} (auto)" if entry["is_auto"] else entry["precision"]
    speeds = [f"{entry['tokens_per_s'][str(size)]:.0f} tokens/s" for size in sizes]
    return [name, "yes" if entry["exact"] else "no", f"{entry['weight_bytes'] / 1e6:.0f} MB", *speeds]
