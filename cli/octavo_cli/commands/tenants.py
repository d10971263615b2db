"""octavo tenants: how much of the platform each tenant may take. Works on the database, as an operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from octavo_cli.context import Context
from octavo_cli.database import on_database
from octavo_cli.output import WrongUse, show_json, show_table
from octavo_common.jobs.model import TenantLimits
from octavo_common.store.keys import TenantStore

T = TypeVar("T")
NO_LIMIT = "none"


@click.group()
def tenants() -> None:
    """Show and set what tenants may take."""


@tenants.group()
def limits() -> None:
    """Show and set tenants' limits on jobs."""


def _with_store(context: Context, work: Callable[[TenantStore], Awaitable[T]]) -> T:
    return on_database(context, lambda database: work(TenantStore(database)), name="octavo tenants")


class Limit(click.ParamType[int | str]):
    """A number of jobs, or "none"."""

    name = "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Refuse everything else with a usage error."""
        if value == NO_LIMIT:
            return NO_LIMIT
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number of jobs nor {NO_LIMIT!r}", param, ctx)
        return int(value)


@limits.command()
@click.argument("tenant", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(context: Context, tenant: str | None, as_json: bool) -> None:
    """Show TENANT's limits, or those of all tenants that the database knows."""

    async def work(store: TenantStore) -> dict[str, TenantLimits]:
        return await store.list() if tenant is None else {tenant: await store.limits(tenant)}

    _print(_with_store(context, work), as_json)


@limits.command("set")
@click.argument("tenant")
@click.option("--max-running", type=Limit(), help="Most jobs that run at once; none: no limit.")
@click.option("--max-queued", type=Limit(), help="Most jobs that wait; more are refused with a hint when to retry.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def set_(
    context: Context, tenant: str, max_running: int | str | None, max_queued: int | str | None, as_json: bool
) -> None:
    """Change what is given of TENANT's limits; gateways and the scheduler take them up within seconds."""
    if max_running is None and max_queued is None:
        raise WrongUse("no limit is given", hint="give --max-running or --max-queued, a number or none")

    async def work(store: TenantStore) -> dict[str, TenantLimits]:
        known = await store.limits(tenant)
        wanted = TenantLimits(
            max_running=_changed(known.max_running, max_running), max_queued=_changed(known.max_queued, max_queued)
        )
        if wanted != known:
            await store.set_limits(tenant, wanted)
        return {tenant: wanted}

    _print(_with_store(context, work), as_json)


def _changed(known: int | None, given: int | str | None) -> int | None:
    if given is None:
        return known
    return None if isinstance(given, str) else given


def _print(found: dict[str, TenantLimits], as_json: bool) -> None:
    if as_json:
        show_json(
            [{"tenant": t, "max_running": of.max_running, "max_queued": of.max_queued} for t, of in found.items()]
        )
        return
    rows = [
        (tenant, *(NO_LIMIT if limit is None else str(limit) for limit in (of.max_running, of.max_queued)))
        for tenant, of in found.items()
    ]
    show_table(("tenant", "max running", "max queued"), rows, empty="no tenant has limits")
