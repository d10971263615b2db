"""The data directory as the command line sees it: secrets, logs, the supervisor's state. Knows no database."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from octavo_common import ids, space
from octavo_common.errors import FailedPrecondition

# The logs' first lines, the supervisor's state, the secrets.
_OWN_BYTES = 1_000_000


class DataDirUnusable(FailedPrecondition):
    """The data directory cannot be made, or not be written."""

    code = "BAD_DATA_DIR"

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="choose another one with --data-dir or OCTAVO_DATA_DIR")


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths in one data directory, and the secrets in it."""

    root: Path

    @property
    def logs(self) -> Path:
        """Folder of the services' logs."""
        return self.root / "logs"

    @property
    def up_log(self) -> Path:
        """Log of a supervisor in the background."""
        return self.logs / "up.log"

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

    def problem(self) -> str:
        """Why nothing can be written here, in one sentence; empty when something can. Leaves nothing behind."""
        above = self.root
        # Permissions say too little: of root they allow everything, also on what cannot be written at all.
        try:
            while not above.exists() and above != above.parent:
                above = above.parent
            Path(tempfile.mkdtemp(prefix=".octavo-probe-", dir=above)).rmdir()
        except NotADirectoryError:
            return f"the data directory {self.root} cannot be used: {above} is not a folder"
        except OSError as error:
            if above == self.root:
                return f"the data directory {self.root} cannot be written: {error.strerror}"
            return (
                f"the data directory {self.root} cannot be made: nothing can be written into {above} ({error.strerror})"
            )
        return ""

    def make(self) -> None:
        """Make the folders that are missing; secrets are for the owner alone. Raises DataDirUnusable or NoSpace."""
        problem = self.problem()
        if problem:
            raise DataDirUnusable(problem)
        space.require(self.root, _OWN_BYTES, "the platform's own files")
        try:
            for name, mode in (("", 0o755), ("logs", 0o755), ("run", 0o755), ("secrets", 0o700)):
                (self.root / name).mkdir(parents=True, exist_ok=True, mode=mode)
        except OSError as error:
            told = f"the data directory {self.root} cannot be made: {error.filename}: {error.strerror}"
            raise DataDirUnusable(told) from error

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
