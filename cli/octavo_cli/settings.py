"""Reads what the command line takes from the environment, and finds the data directory. The only reader of it here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr

from octavo_common.settings import PREFIX, CommonSettings, read, redact_url

# Read by clients alone, or secret: they say nothing of how a platform runs.
_NOT_SHAPING = ("ADDRESS", "API_KEY", "DATA_DIR", "KEY_FILE", "TOKEN", "PASSWORD")


class CliSettings(CommonSettings):
    """What the command line reads beside the common settings."""

    # host:port of the gateways; default: what `octavo up` wrote into the data directory.
    address: str = Field(default="", validation_alias="OCTAVO_ADDRESS")
    api_key: SecretStr = Field(default=SecretStr(""), validation_alias="OCTAVO_API_KEY")
    # First ports; further gateways take the next free ones, 0 takes any free one.
    grpc_port: int = Field(default=50051, ge=0, le=65535, validation_alias="OCTAVO_GATEWAY_GRPC_PORT")
    http_port: int = Field(default=8080, ge=0, le=65535, validation_alias="OCTAVO_GATEWAY_HTTP_PORT")
    console_port: int = Field(default=8501, ge=0, le=65535, validation_alias="OCTAVO_CONSOLE_PORT")
    # Threads of each worker; default: its share of the cores.
    worker_threads: int = Field(default=0, ge=0, validation_alias="OCTAVO_WORKER_NUM_THREADS")


def load(data_dir: Path | None = None) -> CliSettings:
    """Read the settings; the data directory is absolute, and a given one wins. Raises SettingsError."""
    environ = dict(os.environ)
    chosen = data_dir or find_data_dir(environ, Path.cwd(), Path(__file__))
    return read(CliSettings, data_dir=chosen.expanduser().resolve())


def find_data_dir(environ: Mapping[str, str], cwd: Path, package_file: Path) -> Path:
    """OCTAVO_DATA_DIR, else .octavo in the clone around the current directory or around this package, else per user."""
    if environ.get("OCTAVO_DATA_DIR"):
        return cwd / environ["OCTAVO_DATA_DIR"]
    for start in (cwd, package_file.parent):
        for folder in (start, *start.parents):
            if (folder / "pyproject.toml").is_file() and (folder / "protos" / "octavo").is_dir():
                return folder / ".octavo"
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "octavo"


def default_data_dir() -> Path:
    """The data directory of whoever gives none."""
    environ = {name: value for name, value in os.environ.items() if name != "OCTAVO_DATA_DIR"}
    return find_data_dir(environ, Path.cwd(), Path(__file__)).expanduser().resolve()


def shaping(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that say how a platform runs, without passwords."""
    return {
        name: redact_url(value)
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and value and not name.endswith(_NOT_SHAPING)
    }


def known_shaping(settings: CliSettings) -> dict[str, str]:
    """What the settings come to that this program reads itself, set or not, by the names of their variables."""
    return {
        "OCTAVO_HOST": settings.host,
        "OCTAVO_GATEWAY_GRPC_PORT": str(settings.grpc_port),
        "OCTAVO_GATEWAY_HTTP_PORT": str(settings.http_port),
        "OCTAVO_CONSOLE_PORT": str(settings.console_port),
        "OCTAVO_WORKER_NUM_THREADS": str(settings.worker_threads),
        "OCTAVO_LEASE_S": str(settings.lease_s),
    }


def environ() -> dict[str, str]:
    """The environment, for the processes that the supervisor starts and for the report of unknown names."""
    return dict(os.environ)
