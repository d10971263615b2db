"""Makes ready what the services need before they start: database, schema, secrets, keys, model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo_cli.datadir import DataDir
from octavo_cli.settings import CliSettings
from octavo_common import space
from octavo_common.db import migrate
from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.engine import connect
from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import fetch, find, needed_bytes
from octavo_common.store.keys import KeyStore

TENANT = "default"
# What is being done, and the fraction that is done, if that is known.
Report = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the services will use. ``embedded`` is None when the database is not ours."""

    database_url: str
    embedded: EmbeddedPostgres | None
    model_path: Path
    model_name: str


def prepare(data_dir: DataDir, settings: CliSettings, model: str, report: Report) -> Prepared:
    """Do all of it; every step that was done before is quick. Raises the errors of the steps."""
    name = model or DEFAULT_MODEL
    embedded = None if settings.database_url else EmbeddedPostgres(data_dir.root)
    _check_space(data_dir, embedded, name)
    secrets = data_dir.make_secrets()
    url = settings.database_url
    if embedded is not None:
        report("starting the database", None)
        url = embedded.start()
    report("bringing the schema up to date", None)
    migrate.upgrade(url)
    asyncio.run(register_keys(url, secrets))
    report(f"looking for the model {name}", None)

    def on_bytes(num_done: int, num_total: int | None) -> None:
        report(f"fetching the model {name} ({num_done / 1e6:.0f} MB)", num_done / num_total if num_total else None)

    files = fetch(name, data_dir=data_dir.root, progress=on_bytes)
    return Prepared(database_url=url, embedded=embedded, model_path=files.path, model_name=files.name)


def _check_space(data_dir: DataDir, embedded: EmbeddedPostgres | None, model: str) -> None:
    """Raise NoSpace, or UnknownModel, before anything is begun that could not be finished."""
    needs = {
        "the database": embedded.needed_bytes if embedded else 0,
        f"the model {model!r}": 0 if find(model, data_dir=data_dir.root) else needed_bytes(model),
    }
    what = " and ".join(name for name, num_bytes in needs.items() if num_bytes)
    space.require(data_dir.root, sum(needs.values()), what)


async def register_keys(database_url: str, secrets: dict[str, str]) -> None:
    """Put the data directory's keys into the table. A key that is there stays as it is, also a revoked one."""
    database = connect(database_url, pool_size=1)
    try:
        store = KeyStore(database)
        known = {key.id for key in await store.list()}
        for scope in ("user", "admin"):
            key = secrets[f"{scope}_key"]
            if not any(hashlib.sha256(key.encode()).hexdigest().startswith(one) for one in known):
                await store.create(TENANT, scope, f"{scope} key of the data directory", key=key)
    finally:
        await database.dispose()
