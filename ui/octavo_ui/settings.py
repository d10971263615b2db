"""Reads the console's settings from the environment. The only module here that does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class UiSettings:
    """Where the gateway is, whose key the console uses, and where it listens."""

    # host:port of the gateway's gRPC server; several, separated by commas, are tried in turn.
    address: str
    api_key: str
    # Loopback unless told otherwise: the console acts with an admin key.
    host: str
    port: int

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> UiSettings:
        """Read OCTAVO_ADDRESS, OCTAVO_CONSOLE_HOST and OCTAVO_CONSOLE_PORT.

        The key is OCTAVO_API_KEY, else the content of OCTAVO_ADMIN_KEY_FILE, else the data directory's admin key.
        """
        env = os.environ if env is None else env
        key = env.get("OCTAVO_API_KEY", "")
        key_file = Path(
            env.get("OCTAVO_ADMIN_KEY_FILE") or Path(env.get("OCTAVO_DATA_DIR", ".octavo"), "secrets/admin_key")
        )
        if not key and key_file.is_file():
            key = key_file.read_text().strip()
        return cls(
            address=env.get("OCTAVO_ADDRESS", "127.0.0.1:50051"),
            api_key=key,
            host=env.get("OCTAVO_CONSOLE_HOST", env.get("OCTAVO_HOST", "127.0.0.1")),
            port=int(env.get("OCTAVO_CONSOLE_PORT", "8501")),
        )
