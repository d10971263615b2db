"""The data directory as the command line sees it: secrets, logs, the supervisor's state. Knows no database."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from octavo_common import ids


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths in one data directory, and the secrets in it."""

    root: Path

    @property
    def logs(self) -> Path:
        """Folder of the services' logs."""
        return self.root / "logs"

    @property
    def state_file(self) -> Path:
        """What the supervisor says about itself."""
        return self.root / "run" / "up.json"

    @property
    def lock_file(self) -> Path:
        """Held by the supervisor while it lives."""
        return self.root / "run" / "up.lock"

    def secret(self, name: str) -> str:
        """A secret's content; empty when there is none."""
        path = self.root / "secrets" / name
        return path.read_text().strip() if path.is_file() else ""

    def make(self) -> None:
        """Make the folders that are missing; secrets are for the owner alone."""
        for name, mode in (("", 0o755), ("logs", 0o755), ("run", 0o755), ("secrets", 0o700)):
            (self.root / name).mkdir(parents=True, exist_ok=True, mode=mode)

    def make_secrets(self) -> dict[str, str]:
        """Make the secrets that are missing (0600) and return all: internal_token, admin_key, user_key."""
        self.make()
        makers = {
            "internal_token": lambda: secrets.token_urlsafe(32),
            "admin_key": ids.new_api_key,
            "user_key": ids.new_api_key,
        }
        return {name: self.secret(name) or self._write(name, make()) for name, make in makers.items()}

    def _write(self, name: str, value: str) -> str:
        path = self.root / "secrets" / name
        path.unlink(missing_ok=True)
        # Nobody else can read it, not even for a moment.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(value + "\n")
        return value
