"""What every command gets: settings, data directory, and a client that knows address and key."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

import octavo
from octavo_cli import settings as settings_module
from octavo_cli.datadir import DataDir
from octavo_cli.settings import CliSettings
from octavo_cli.supervisor import state
from octavo_common.errors import FailedPrecondition


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Built once per call of the command."""

    settings: CliSettings
    data_dir: DataDir
    address: str
    key: str

    @classmethod
    def make(cls, *, data_dir: Path | None, address: str, key: str) -> Context:
        """Read the environment; what was given on the command line wins."""
        settings = settings_module.load(data_dir)
        # Shared code logs; a command speaks for itself, and its stdout is data.
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        )
        return cls(
            settings=settings,
            data_dir=DataDir(settings.data_dir),
            address=address or settings.address,
            key=key or settings.api_key.get_secret_value(),
        )

    def client(self, *, scope: str = "user") -> octavo.Client:
        """A client with the data directory's key of that scope, unless another was given."""
        return octavo.Client(self.addresses(), api_key=self.key or self.data_dir.secret(f"{scope}_key"))

    def addresses(self) -> str:
        """Where the gateways are: as given, else what the supervisor wrote, else this machine's default."""
        if self.address:
            return self.address
        up = state.read(self.data_dir.state_file)
        found = ",".join(up.grpc_addresses) if up is not None and state.is_up(self.data_dir) else ""
        return found or f"127.0.0.1:{self.settings.grpc_port or 50051}"

    def database_url(self) -> str:
        """The database: from the environment, else the embedded one if it runs; raises FailedPrecondition."""
        if self.settings.database_url:
            return self.settings.database_url
        from octavo_common.db.embedded import EmbeddedPostgres

        embedded = EmbeddedPostgres(self.data_dir.root)
        if not embedded.is_running or not embedded.dsn:
            raise FailedPrecondition(
                "the embedded database does not run", hint="start it with `octavo up`, or set OCTAVO_DATABASE_URL"
            )
        return embedded.dsn
