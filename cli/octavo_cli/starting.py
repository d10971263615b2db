"""What `octavo up` shows while a platform starts, and when it has started. Starts nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from octavo_cli.context import Context
from octavo_cli.output import err, say
from octavo_cli.supervisor.state import UpState


class StartView:
    """A line that says what is being done; a bar when it is known how much of it. Mutable; a context manager.

    Without a terminal there is no bar: then each step is a line, and so is each time when there is none for long.
    """

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._text = "starting the supervisor"
        self._step = ""
        self._task = self._progress.add_task(self._text, total=None)

    def on_change(self, up: UpState) -> None:
        """Show what the supervisor has said."""
        told = "; ".join(up.not_ready[:3]) if up.services else up.phase
        self._text = up.trouble or up.detail or told or up.phase
        self._progress.update(
            self._task,
            description=self._text[:100],
            total=1.0 if up.fraction is not None else None,
            completed=up.fraction or 0.0,
        )
        step = self._text.split(" (")[0]
        if not err.is_terminal and step != self._step:
            self._step = step
            say(step)

    def on_wait(self, waited_s: float) -> None:
        """Show that it is still waited for the last thing said."""
        if not err.is_terminal:
            say(f"after {waited_s:.0f} s: {self._text}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()


def welcome(context: Context, up: UpState) -> None:
    """Print where the platform answers, and commands that work as they are printed."""
    ready = up.phase == "ready"
    click.echo("Octavo is ready." if ready else f"Octavo is starting; `{context.line('status')}` shows how far it is.")
    click.echo(f"  gRPC     {', '.join(up.grpc_addresses)}")
    click.echo(f"  HTTP     {', '.join(f'http://{address}/v1' for address in up.http_addresses)}")
    if up.console_address:
        click.echo(f"  console  http://{up.console_address}")
    click.echo(f"  logs     {context.data_dir.logs}")
    click.echo(f'Try:   {context.line("generate")} "What is the capital of Japan?"')
    click.echo(f"Keys:  {context.line('keys', 'show')}")
    click.echo(f"Stop:  {context.line('down')}")
