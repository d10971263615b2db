"""API keys and the tenants they belong to. Keys are kept as hashes: a key is shown once, when it is made."""

from __future__ import annotations

import hashlib

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from octavo_common import ids
from octavo_common.db.tables import api_keys, tenants
from octavo_common.errors import InvalidArgument, NotFound
from octavo_common.jobs.model import ApiKey, Principal, TenantLimits
from octavo_common.store.base import Store

_ID_DIGITS = 12


class KeyStore(Store):
    """Keys of clients."""

    async def create(self, tenant: str, scope: str, name: str, *, key: str | None = None) -> str:
        """Make a key (or take one that exists elsewhere already) and return it. Its tenant is made if there is none."""
        if scope not in ("user", "admin"):
            raise InvalidArgument(f"a key's scope is user or admin, not {scope!r}", param="scope")
        key = ids.new_api_key() if key is None else key
        row = {"hash": _hash(key), "tenant": tenant, "scope": scope, "name": name}
        again = {"tenant": tenant, "scope": scope, "name": name, "revoked_at": None}
        async with self._transaction() as connection:
            await connection.execute(insert(tenants).values(name=tenant).on_conflict_do_nothing())
            await connection.execute(
                insert(api_keys).values(row).on_conflict_do_update(index_elements=[api_keys.c.hash], set_=again)
            )
        return key

    async def authenticate(self, key: str) -> Principal | None:
        """Who the key belongs to; None when it is unknown or revoked."""
        statement = (
            select(api_keys.c.tenant, api_keys.c.scope, tenants.c.max_running, tenants.c.max_queued)
            .outerjoin(tenants, tenants.c.name == api_keys.c.tenant)
            .where(api_keys.c.hash == _hash(key), api_keys.c.revoked_at.is_(None))
        )
        rows = await self._run(statement)
        if not rows:
            return None
        row = rows[0]
        limits = TenantLimits(max_running=row.max_running, max_queued=row.max_queued)
        return Principal(tenant=row.tenant, scope=row.scope, limits=limits)

    async def list(self, tenant: str | None = None) -> list[ApiKey]:
        """Read the keys, oldest first, also revoked ones."""
        statement = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.hash)
        if tenant is not None:
            statement = statement.where(api_keys.c.tenant == tenant)
        return [
            ApiKey(
                id=row.hash[:_ID_DIGITS],
                tenant=row.tenant,
                scope=row.scope,
                name=row.name,
                created_at=row.created_at,
                revoked=row.revoked_at is not None,
            )
            for row in await self._run(statement)
        ]

    async def revoke(self, key_id: str) -> None:
        """Make a key useless, by the id that `list` shows. Raises NotFound."""
        statement = (
            update(api_keys)
            .where(func.left(api_keys.c.hash, _ID_DIGITS) == key_id)
            .values(revoked_at=func.coalesce(api_keys.c.revoked_at, func.now()))
            .returning(api_keys.c.hash)
        )
        if not await self._run(statement):
            raise NotFound(f"there is no key {key_id!r}", hint="`octavo keys list` shows them")


class TenantStore(Store):
    """Limits of tenants."""

    async def limits(self, tenant: str) -> TenantLimits:
        """Read a tenant's limits; an unknown tenant has none."""
        statement = select(tenants.c.max_running, tenants.c.max_queued).where(tenants.c.name == tenant)
        rows = await self._run(statement)
        return TenantLimits(max_running=rows[0].max_running, max_queued=rows[0].max_queued) if rows else TenantLimits()

    async def list(self) -> dict[str, TenantLimits]:
        """Read the limits of all tenants that have a row, by name."""
        rows = await self._run(
            select(tenants.c.name, tenants.c.max_running, tenants.c.max_queued).order_by(tenants.c.name)
        )
        return {row.name: TenantLimits(max_running=row.max_running, max_queued=row.max_queued) for row in rows}

    async def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Write a tenant's limits; the tenant is made if there is none."""
        values = {"max_running": limits.max_running, "max_queued": limits.max_queued}
        statement = insert(tenants).values(name=tenant, **values)
        await self._run(statement.on_conflict_do_update(index_elements=[tenants.c.name], set_=values))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
