"""octavo up, down, status: one machine's platform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import octavo
from octavo.clock import Clock
from octavo_cli import settings as settings_module
from octavo_cli.context import Context
from octavo_cli.output import err, say, show_json, show_table
from octavo_cli.supervisor import launch, state
from octavo_cli.supervisor.plan import UpOptions
from octavo_cli.supervisor.state import UpState
from octavo_common.errors import FailedPrecondition


@click.command()
@click.option("--detach", is_flag=True, help="Return at once; the platform goes on in the background.")
@click.option("--wait", is_flag=True, help="With --detach: return when the platform answers.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=900.0, help="Bound of --wait, in seconds."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Workers.")
@click.option("--gateways", type=click.IntRange(1, 64), default=1, show_default=True, help="Gateways.")
@click.option("--schedulers", type=click.IntRange(1, 64), default=1, show_default=True, help="Schedulers.")
@click.option("--model", default="", help="Name, path or hub id of the model [smollm2-135m].")
@click.option("--no-console", is_flag=True, help="Without the web console.")
@click.pass_obj
def up(
    context: Context,
    detach: bool,
    wait: bool,
    timeout_s: float,
    workers: int,
    gateways: int,
    schedulers: int,
    model: str,
    no_console: bool,
) -> int:
    """Start the platform: database, schema, keys, model, services, console.

    Without --detach it runs here until Ctrl-C. Ports: OCTAVO_GATEWAY_GRPC_PORT, OCTAVO_GATEWAY_HTTP_PORT,
    OCTAVO_CONSOLE_PORT; 0 takes any free one.
    """
    options = UpOptions(workers=workers, gateways=gateways, schedulers=schedulers, model=model, console=not no_console)
    if state.is_up(context.data_dir):
        return _already_up(context, wait=wait, timeout_s=timeout_s)
    if not detach:
        return _run_here(context, options)
    child = launch.spawn_detached(context.data_dir, _words(options))
    with _progress() as on_change:
        found = launch.wait(
            context.data_dir,
            timeout_s=timeout_s,
            clock=Clock(),
            on_change=on_change,
            child=child,
            until=lambda up: up.phase == "ready" if wait else bool(up.services),
        )
    # The supervisor goes on without us: its end is not ours to wait for.
    child.returncode = 0
    _welcome(context, found)
    return 0


def _words(options: UpOptions) -> list[str]:
    words = [
        f"--workers={options.workers}",
        f"--gateways={options.gateways}",
        f"--schedulers={options.schedulers}",
    ]
    if options.model:
        words.append(f"--model={options.model}")
    return words if options.console else [*words, "--no-console"]


def _already_up(context: Context, *, wait: bool, timeout_s: float) -> int:
    found = state.read(context.data_dir.state_file)
    if wait or found is None:
        with _progress() as on_change:
            found = launch.wait(context.data_dir, timeout_s=timeout_s, clock=Clock(), on_change=on_change)
    say(f"The platform of {context.data_dir.root} is running already.")
    _welcome(context, found)
    return 0 if found.phase == "ready" else 1


def _run_here(context: Context, options: UpOptions) -> int:
    from octavo_cli.supervisor.supervisor import Supervisor
    from octavo_common.clock import SystemClock
    from octavo_common.telemetry.logs import configure

    context.data_dir.make()
    lock = state.UpLock(context.data_dir)
    if not lock.take():
        raise FailedPrecondition("another supervisor has just started", hint="`octavo status` shows it")
    configure(service="octavo-up", instance=str(context.data_dir.root), level="info", log_format="console")
    announced = False

    def on_change(up: UpState) -> None:
        nonlocal announced
        if up.phase == "preparing" and up.fraction is None and up.detail:
            say(up.detail)
        if up.phase == "ready" and not announced:
            announced = True
            _welcome(context, up)

    supervisor = Supervisor(
        data_dir=context.data_dir,
        settings=context.settings,
        environ=settings_module.environ(),
        options=options,
        clock=SystemClock(),
        on_change=on_change,
    )
    try:
        code = asyncio.run(supervisor.run())
    finally:
        lock.release()
    if code:
        failed = state.read(context.data_dir.state_file)
        raise launch.StartFailed(failed.error if failed else "it did not start", hint=failed.hint if failed else "")
    return code


@contextmanager
def _progress() -> Iterator[Callable[[UpState], None]]:
    """A line that says what is being done; a bar when it is known how much of it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("starting the supervisor", total=None)
        last = ""

        def on_change(up: UpState) -> None:
            nonlocal last
            text = up.detail or ("; ".join(up.not_ready[:3]) if up.services else up.phase)
            progress.update(
                task,
                description=text[:100],
                total=1.0 if up.fraction is not None else None,
                completed=up.fraction or 0.0,
            )
            # Without a terminal there is no bar; a line per step says as much.
            step = text.split(" (")[0]
            if not err.is_terminal and step != last:
                last = step
                say(step)

        yield on_change


def _welcome(context: Context, up: UpState) -> None:
    title = "Octavo is ready." if up.phase == "ready" else "Octavo is starting; `octavo status` shows how far it is."
    click.echo(title)
    click.echo(f"  gRPC     {', '.join(up.grpc_addresses)}")
    click.echo(f"  HTTP     {', '.join(f'http://{address}/v1' for address in up.http_addresses)}")
    if up.console_address:
        click.echo(f"  console  http://{up.console_address}")
    click.echo('Try:  octavo generate "What is the capital of France?"')
    click.echo(f"Keys: octavo keys show    Logs: {context.data_dir.logs}    Stop: octavo down")


@click.command()
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=40.0, help="Then it is killed.")
@click.pass_obj
def down(context: Context, timeout_s: float) -> int:
    """Stop the platform; also what a killed supervisor left behind."""
    if launch.down(context.data_dir, timeout_s=timeout_s, clock=Clock(), say=say):
        say("stopped")
    else:
        say("nothing was running")
    return 0


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
        say(f"No platform is running in {context.data_dir.root}. Start it with `octavo up`.")
        return 1
    rows = [(s.name, s.state, s.pid, s.address or s.http_address, s.restarts, s.reason) for s in found.services]
    show_table(("service", "state", "pid", "address", "restarts", "why"), rows, empty=found.detail or found.phase)
    if trouble:
        say(f"jobs: {trouble}")
    else:
        click.echo("jobs: " + ", ".join(f"{count} {name}" for name, count in queue.items()))
    return 0 if found.phase == "ready" else 1


_SHOWN = 1000


def _queue(context: Context) -> tuple[dict[str, str], str]:
    """Jobs that have not ended, by state; or why they cannot be counted."""
    states = (octavo.JobState.QUEUED, octavo.JobState.ASSIGNED, octavo.JobState.RUNNING)
    quick = octavo.RetryPolicy(max_attempts=1)
    key = context.key or context.data_dir.secret("admin_key")
    try:
        with octavo.Client(context.addresses(), api_key=key, timeout_s=5.0, retry=quick) as client:
            jobs = client.jobs.list(states=states, limit=_SHOWN)
    except octavo.OctavoError as error:
        return {}, error.message
    counts = {str(one): sum(job.state is one for job in jobs) for one in states}
    more = "+" if len(jobs) >= _SHOWN else ""
    return {name: f"{count}{more}" if count else "0" for name, count in counts.items()}, ""
