"""octavo up and down: one machine's platform."""

from __future__ import annotations

import asyncio

import click
from click.core import ParameterSource

from octavo.clock import Clock
from octavo_cli import settings as settings_module
from octavo_cli.context import Context
from octavo_cli.output import WrongUse, complain, say
from octavo_cli.starting import StartView, welcome
from octavo_cli.supervisor import launch, state
from octavo_cli.supervisor.plan import UpOptions, differences
from octavo_cli.supervisor.state import UpState
from octavo_common.errors import FailedPrecondition
from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import absolute


@click.command()
@click.option("--detach", is_flag=True, help="Return at once; the platform goes on in the background.")
@click.option("--wait", is_flag=True, help="With --detach: return when the platform answers.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Bound of --wait, in seconds; the platform goes on after it.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Workers.")
@click.option("--gateways", type=click.IntRange(1, 64), default=1, show_default=True, help="Gateways.")
@click.option("--schedulers", type=click.IntRange(1, 64), default=1, show_default=True, help="Schedulers.")
@click.option(
    "--edge-builders",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Edge builders; they need `pip install 'octavo[edge]'`.",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Name, path or hub id of the model.")
@click.option("--no-console", is_flag=True, help="Without the web console.")
@click.pass_context
def up(
    ctx: click.Context,
    detach: bool,
    wait: bool,
    timeout_s: float,
    workers: int,
    gateways: int,
    schedulers: int,
    edge_builders: int,
    model: str,
    no_console: bool,
) -> int:
    """Start the platform: database, schema, keys, model, services, console.

    Without --detach it stays in the foreground until Ctrl-C. Ports: OCTAVO_GATEWAY_GRPC_PORT, OCTAVO_GATEWAY_HTTP_PORT,
    OCTAVO_CONSOLE_PORT; 0 takes any free one. On a platform that runs already it changes nothing, and refuses options
    that differ from those that it runs with.
    """
    context: Context = ctx.obj
    options = UpOptions(
        workers=workers,
        gateways=gateways,
        schedulers=schedulers,
        edge_builders=edge_builders,
        model=absolute(model or DEFAULT_MODEL),
        console=not no_console,
    )
    if state.is_up(context.data_dir):
        given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        return _already_up(context, options, given, wait=wait, timeout_s=timeout_s)
    context.data_dir.make()
    say(f"starting the platform of {context.data_dir.root}")
    if not detach:
        say(f"it stays in the foreground until Ctrl-C; `{context.line('up', '--detach')}` leaves it in the background")
        return _run_here(context, options)
    return _run_detached(context, options, wait=wait, timeout_s=timeout_s)


def _run_detached(context: Context, options: UpOptions, *, wait: bool, timeout_s: float) -> int:
    child = launch.spawn_detached(context.data_dir, _words(options))
    try:
        with StartView() as view:
            found = launch.wait(
                context.data_dir,
                timeout_s=timeout_s,
                clock=Clock(),
                on_change=view.on_change,
                on_wait=view.on_wait,
                child=child,
                until=lambda up: up.phase == "ready" if wait else bool(up.services),
            )
    except KeyboardInterrupt:
        return _interrupted(context)
    finally:
        # The supervisor goes on without us: its end is not ours to wait for.
        child.returncode = child.returncode or 0
    welcome(context, found)
    return 0


def _interrupted(context: Context) -> int:
    complain(
        f"interrupted; the platform of {context.data_dir.root} goes on in the background",
        hint=f"`{context.line('down')}` stops it, `{context.line('status')}` shows how far it is",
    )
    return 130


def _words(options: UpOptions) -> list[str]:
    words = [
        f"--workers={options.workers}",
        f"--gateways={options.gateways}",
        f"--schedulers={options.schedulers}",
        f"--edge-builders={options.edge_builders}",
        f"--model={options.model}",
    ]
    return words if options.console else [*words, "--no-console"]


def _already_up(context: Context, options: UpOptions, given: set[str], *, wait: bool, timeout_s: float) -> int:
    try:
        with StartView() as view:
            found = launch.wait(
                context.data_dir,
                timeout_s=timeout_s,
                clock=Clock(),
                on_change=lambda up: None,
                until=lambda up: True,
            )
            _refuse_others(context, options, given, found)
            if wait:
                found = launch.wait(
                    context.data_dir,
                    timeout_s=timeout_s,
                    clock=Clock(),
                    on_change=view.on_change,
                    on_wait=view.on_wait,
                )
    except KeyboardInterrupt:
        return _interrupted(context)
    say(f"The platform of {context.data_dir.root} is running already.")
    welcome(context, found)
    return 0 if found.phase == "ready" else 1


def _refuse_others(context: Context, options: UpOptions, given: set[str], found: UpState) -> None:
    """Raise WrongUse when what was asked for is not what runs: nobody should believe that it was changed."""
    environ = settings_module.environ()
    known = settings_module.known_shaping(context.settings)
    variables = {name: known.get(name, value) for name, value in settings_module.shaping(environ).items()}
    others = differences(options, given, variables, found.options)
    if others:
        raise WrongUse(
            f"the platform of {context.data_dir.root} runs already, and otherwise: {'; '.join(others)}",
            hint=f"stop it with `{context.line('down')}` first, or leave these options out",
        )


def _run_here(context: Context, options: UpOptions) -> int:
    from octavo_cli.supervisor.supervisor import Supervisor
    from octavo_common.clock import SystemClock
    from octavo_common.telemetry.logs import configure

    lock = state.UpLock(context.data_dir)
    if not lock.take():
        raise FailedPrecondition("another supervisor has just started", hint=f"`{context.line('status')}` shows it")
    configure(service="octavo-up", instance=str(context.data_dir.root), level="info", log_format="console")
    announced = False

    def on_change(up: UpState) -> None:
        nonlocal announced
        if up.phase == "preparing" and up.fraction is None and up.detail:
            say(up.detail)
        if up.phase == "ready" and not announced:
            announced = True
            welcome(context, up)

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


@click.command()
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=40.0, help="Then it is killed.")
@click.pass_obj
def down(context: Context, timeout_s: float) -> int:
    """Stop the platform; also what a killed supervisor left behind."""
    if launch.down(context.data_dir, timeout_s=timeout_s, clock=Clock(), say=say):
        say("stopped")
    else:
        say(f"nothing was running in {context.data_dir.root}")
    return 0
