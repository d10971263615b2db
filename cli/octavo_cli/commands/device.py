"""octavo device: runs a bundle of the edge builder on this machine. The runner is a program of its own."""

from __future__ import annotations

import os
import sys

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def device(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Answer a prompt from a bundle (`run DIR`), or replay its test vectors (`verify DIR`).

    `octavo device run --help` and `octavo device verify --help` have the rest.
    """
    if words in ((), ("-h",), ("--help",)):
        click.echo(ctx.get_help())
        return
    sys.stdout.flush()
    # Takes this process's place: it has the terminal, the signals and the exit code to itself.
    os.execv(sys.executable, [sys.executable, "-m", "octavo_device", *words])
