"""octavo db: where the database is, and its schema."""

from __future__ import annotations

import click

from octavo_cli.context import Context
from octavo_cli.output import err, say, show_json
from octavo_common.settings import redact_url


@click.group()
def db() -> None:
    """Look at the database."""


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def url(context: Context, as_json: bool) -> None:
    """Print the database's address, with its password."""
    found = context.database_url()
    if as_json:
        show_json({"url": found})
    else:
        click.echo(found)


@db.command()
@click.pass_obj
def migrate(context: Context) -> None:
    """Bring the schema up to date. Safe to run at any time, from any number of places."""
    from octavo_common.db import migrate as migration

    found = context.database_url()
    before = migration.current(found)
    with err.status("migrating"):
        migration.upgrade(found)
    after = migration.current(found)
    say(f"the schema is at {after}" + (" already" if before == after else f" (was {before or 'empty'})"))


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status(context: Context, as_json: bool) -> int:
    """Show whether the database answers and its schema is current. Exit code 0 when both hold."""
    from octavo_common.db import migrate as migration

    found = context.database_url()
    revision, newest = migration.current(found), migration.head()
    current = revision == newest
    if as_json:
        show_json({"url": redact_url(found), "revision": revision, "newest": newest, "current": current})
    else:
        click.echo(f"{redact_url(found)}: schema {revision or 'empty'}" + ("" if current else f", newest is {newest}"))
        if not current:
            say("bring it up to date with `octavo db migrate`")
    return 0 if current else 1
