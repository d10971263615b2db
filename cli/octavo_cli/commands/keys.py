"""octavo keys: the data directory's keys, and those in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from octavo_cli.context import Context
from octavo_cli.database import on_database
from octavo_cli.output import age, say, show_json, show_table
from octavo_common.errors import NotFound
from octavo_common.store.keys import KeyStore

T = TypeVar("T")


@click.group()
def keys() -> None:
    """Make, show and revoke API keys."""


def _with_store(context: Context, work: Callable[[KeyStore], Awaitable[T]]) -> T:
    return on_database(context, lambda database: work(KeyStore(database)), name="octavo keys")


@keys.command()
@click.option("--scope", type=click.Choice(["user", "admin"]), default="user", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print both as JSON.")
@click.pass_obj
def show(context: Context, scope: str, as_json: bool) -> None:
    """Print a key of the data directory."""
    found = {name: context.data_dir.secret(f"{name}_key") for name in ("user", "admin")}
    if not found[scope]:
        raise NotFound(f"{context.data_dir.root} has no {scope} key", hint="`octavo up` makes one")
    if as_json:
        show_json(found)
    else:
        click.echo(found[scope])


@keys.command()
@click.pass_obj
def init(context: Context) -> None:
    """Make the data directory's secrets and put its keys into the database. `octavo up` does so by itself."""
    from octavo_cli.supervisor.prepare import register_keys

    made = context.data_dir.make_secrets()
    asyncio.run(register_keys(context.database_url(), made))
    say(f"the keys of {context.data_dir.root} are in the database")


@keys.command()
@click.option("--tenant", default="default", show_default=True, help="Who the key belongs to.")
@click.option("--scope", type=click.Choice(["user", "admin"]), default="user", show_default=True)
@click.option("--name", default="", help="What it is for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def create(context: Context, tenant: str, scope: str, name: str, as_json: bool) -> None:
    """Make a key and print it. It is shown this once: the database has only its hash."""
    key = _with_store(context, lambda store: store.create(tenant, scope, name))
    if as_json:
        show_json({"key": key, "tenant": tenant, "scope": scope, "name": name})
    else:
        click.echo(key)


@keys.command("list")
@click.option("--tenant", default=None, help="Only this tenant's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(context: Context, tenant: str | None, as_json: bool) -> None:
    """List the keys by their ids."""
    found = _with_store(context, lambda store: store.list(tenant))
    if as_json:
        show_json(found)
        return
    rows = [(k.id, k.tenant, k.scope, k.name, age(k.created_at), "revoked" if k.revoked else "") for k in found]
    show_table(("id", "tenant", "scope", "name", "age", ""), rows, empty="there are no keys")


@keys.command()
@click.argument("key_id")
@click.pass_obj
def revoke(context: Context, key_id: str) -> None:
    """Make a key useless, by the id that `list` shows."""
    _with_store(context, lambda store: store.revoke(key_id))
    say(f"{key_id} is revoked")
