"""What every command gets: settings, data directory, and a client that knows address and key."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

import octavo
from octavo_cli import invocation
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

    def client(self, *, scope: str = "user", retry: octavo.RetryPolicy | None = None) -> octavo.Client:
        """A client with the data directory's key of that scope, unless another was given."""
        return octavo.Client(self.addresses(), api_key=self.key or self.data_dir.secret(f"{scope}_key"), retry=retry)

    def line(self, *words: str) -> str:
        """How the user calls the command with these words, for the platform of this data directory."""
        return invocation.line(self.data_dir.root, *words)

    def addresses(self) -> str:
        """Where the gateways are: as given, else what the supervisor wrote; raises FailedPrecondition.

        The data directory's key is for the platform of the data directory, not for whatever listens on this machine.
        """
        if self.address:
            return self.address
        if not state.is_up(self.data_dir):
            raise FailedPrecondition(
                f"No platform is running in {self.data_dir.root}",
                hint=f"start it with `{self.line('up')}`, or say where another one is with --address",
                code="NOT_RUNNING",
            )
        up = state.read(self.data_dir.state_file)
        if up is None or not up.grpc_addresses:
            told = (up.error or up.detail or up.phase) if up else "it begins to start"
            raise FailedPrecondition(
                f"the platform of {self.data_dir.root} has no gateway yet: {told}",
                hint=f"`{self.line('status')}` shows how far it is",
                code="NOT_RUNNING",
            )
        return ",".join(up.grpc_addresses)

    def database_url(self) -> str:
        """The database: from the environment, else the embedded one if it runs; raises FailedPrecondition."""
        if self.settings.database_url:
            return self.settings.database_url
        from octavo_common.db.embedded import EmbeddedPostgres

        embedded = EmbeddedPostgres(self.data_dir.root)
        if not embedded.is_running or not embedded.dsn:
            raise FailedPrecondition(
                f"the embedded database of {self.data_dir.root} does not run",
                hint=f"start it with `{self.line('up')}`, or set OCTAVO_DATABASE_URL",
            )
        return embedded.dsn
