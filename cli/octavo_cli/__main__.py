"""The octavo command: the list of commands, and the one place where their errors become a line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

# Imported when used: `octavo --help` needs no database driver, and `octavo generate` no supervisor.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("platform", "Start the platform."),
    "down": ("platform", "Stop the platform."),
    "status": ("status", "Show the services and the queue."),
    "doctor": ("doctor", "Look for what is wrong."),
    "generate": ("generate", "Answer one prompt."),
    "chat": ("generate", "Talk with the model."),
    "jobs": ("jobs", "Look at jobs and steer them."),
    "workers": ("workers", "Show the workers."),
    "models": ("models", "Fetch and list models."),
    "build": ("build", "Build a model for devices."),
    "builds": ("builds", "Look at builds for devices and steer them."),
    "device": ("device", "Run on this machine what was built for devices."),
    "plan": ("plan", "Say what a model needs of a device."),
    "bench": ("bench", "Measure this machine."),
    "keys": ("keys", "Make, show and revoke API keys."),
    "tenants": ("tenants", "Show and set what tenants may take."),
    "db": ("db", "Look at the database."),
}


class _Commands(click.Group):
    """Finds commands by the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"octavo_cli.commands.{COMMANDS[cmd_name][0]}")
        return getattr(module, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.obj is None:
                raise
            from octavo_cli.failures import explained

            found = explained(error, ctx.obj)
            if found is error:
                raise
            raise found from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Data directory [OCTAVO_DATA_DIR, else .octavo in the clone around the working directory, else in the clone "
    "that this program is of, else $XDG_DATA_HOME/octavo, which is ~/.local/share/octavo].",
)
@click.option(
    "--address",
    default="",
    help="Gateways, host:port with commas [OCTAVO_ADDRESS, else those of the data directory's platform].",
)
@click.option("--key", default="", help="API key [OCTAVO_API_KEY, else the data directory's].")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="octavo")
@click.pass_context
def octavo(ctx: click.Context, data_dir: Path | None, address: str, key: str, debug: bool) -> None:
    """Serve language models by the page."""
    from octavo_cli.context import Context

    ctx.obj = Context.make(data_dir=data_dir, address=address, key=key)
    ctx.meta["debug"] = debug


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit: 0 for success only, 2 for wrong use, 130 for Ctrl-C, 1 for all else."""
    # gRPC tells of every connection that ends on stderr, in words of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A command that is told to end leaves as by Ctrl-C and cancels what it has asked for. The supervisor replaces this.
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(argv))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def run(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    from octavo_cli.output import complain

    words = sys.argv[1:] if argv is None else argv
    debug = "--debug" in words
    try:
        code = octavo.main(args=words, prog_name="octavo", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        help_line = error.ctx.command_path + " --help" if isinstance(error, click.UsageError) and error.ctx else ""
        hint = getattr(error, "hint", "") or (f"see `{help_line}`" if help_line else "")
        complain(error.format_message(), hint=hint)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        told = getattr(error, "message", None)
        if isinstance(told, str):
            complain(told, hint=getattr(error, "hint", "") or "", code=getattr(error, "code", "") or "")
        elif isinstance(error, OSError) and error.filename:
            complain(f"{error.filename} cannot be used: {error.strerror}")
        else:
            complain(f"{type(error).__name__}: {error}", hint="a fault of octavo; --debug shows where")
        return 1


if __name__ == "__main__":
    main()
