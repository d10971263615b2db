"""Reads the environment. The only module of the shared package that does; knows no service's own settings.

A service derives its class from CommonSettings and sets `env_prefix` to `OCTAVO_<SERVICE>_` for its own fields; the
fields here keep their own names (`OCTAVO_DATA_DIR`, ...) whatever the prefix.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

import structlog
from pydantic import Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from octavo_common.errors import InvalidArgument

PREFIX = "OCTAVO_"
# A service does not know the names of its siblings' settings; each reports the unknown ones under its own prefix.
SERVICE_PREFIXES = tuple(f"{PREFIX}{name}_" for name in ("GATEWAY", "SCHEDULER", "WORKER", "EDGE", "CONSOLE", "TEST"))
# Read by clients, by the command line, by several services under one name, or by compose.yaml (the second line).
SHARED_NAMES = frozenset(
    {
        *("OCTAVO_ADDRESS", "OCTAVO_API_KEY", "OCTAVO_ADMIN_KEY_FILE", "OCTAVO_JOB_RETENTION"),
        *("OCTAVO_UID", "OCTAVO_GID", "OCTAVO_DB_PASSWORD", "OCTAVO_IMAGE_PREFIX", "OCTAVO_VERSION"),
    }
)
REDACTED = "********"

S = TypeVar("S", bound="CommonSettings")

log = structlog.get_logger(__name__)


class SettingsError(InvalidArgument):
    """A setting is missing or has a value that cannot be used."""

    code = "BAD_SETTING"


class CommonSettings(BaseSettings):
    """What every process of Octavo reads. Frozen; made by `load` in a service, by keyword in tests."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True)

    # Holds the embedded Postgres, the models, the secrets and the logs.
    data_dir: Path = Field(default=Path(".octavo"), validation_alias="OCTAVO_DATA_DIR")
    # postgresql://user:password@host:port/database
    database_url: str = Field(default="", validation_alias="OCTAVO_DATABASE_URL", repr=False)
    # Address to bind.
    host: str = Field(default="127.0.0.1", validation_alias="OCTAVO_HOST")
    # A process that did not renew for so long has lost its jobs; it renews every third of it.
    lease_s: float = Field(default=15.0, gt=0, validation_alias="OCTAVO_LEASE_S")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", validation_alias="OCTAVO_LOG_LEVEL")
    log_format: Literal["json", "console"] = Field(default="json", validation_alias="OCTAVO_LOG_FORMAT")
    # Calls between services carry it. Default: the content of <data_dir>/secrets/internal_token.
    internal_token: SecretStr = Field(default=SecretStr(""), validation_alias="OCTAVO_INTERNAL_TOKEN")
    # 0 takes any free port; the process announces it.
    metrics_port: int = Field(default=0, ge=0, le=65535, validation_alias="OCTAVO_METRICS_PORT")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments win over the environment, which wins over the files of the data directory."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, _DataDirSecrets(settings_cls)

    def require_database_url(self) -> str:
        """The database's address. Raises SettingsError when there is none."""
        if not self.database_url:
            raise SettingsError(
                "no database is set",
                hint="set OCTAVO_DATABASE_URL=postgresql://..., or start with `octavo up`, which brings its own server",
                param="OCTAVO_DATABASE_URL",
            )
        return self.database_url

    def require_internal_token(self) -> str:
        """The token of the data directory. Raises SettingsError when there is none: an empty one must admit nobody."""
        token = self.internal_token.get_secret_value()
        if not token:
            raise SettingsError(
                "there is no token for calls between services",
                hint=f"set OCTAVO_INTERNAL_TOKEN or write {_secret_path(self.data_dir, 'internal_token')}",
                param="OCTAVO_INTERNAL_TOKEN",
            )
        return token


class OtelSettings(BaseSettings):
    """The standard OTEL_* variables that say whether there is a collector; the exporters read the rest themselves."""

    model_config = SettingsConfigDict(env_prefix="OTEL_", frozen=True, extra="ignore")

    sdk_disabled: bool = False
    traces_exporter: str = "otlp"
    metrics_exporter: str = "otlp"
    exporter_otlp_endpoint: str = ""
    exporter_otlp_traces_endpoint: str = ""
    exporter_otlp_metrics_endpoint: str = ""
    exporter_otlp_protocol: str = "grpc"

    @property
    def exports_traces(self) -> bool:
        """Whether spans are sent."""
        return self._exports(self.traces_exporter, self.exporter_otlp_traces_endpoint)

    @property
    def exports_metrics(self) -> bool:
        """Whether metrics are sent."""
        return self._exports(self.metrics_exporter, self.exporter_otlp_metrics_endpoint)

    def ignored(self) -> list[str]:
        """What is set and has no effect, a sentence each."""
        reasons: list[str] = []
        if self.exporter_otlp_protocol != "grpc":
            reasons.append(f"OTEL_EXPORTER_OTLP_PROTOCOL={self.exporter_otlp_protocol}: only grpc is built in")
        for name in ("traces_exporter", "metrics_exporter"):
            value = getattr(self, name)
            if value not in ("otlp", "none", "prometheus"):
                reasons.append(f"OTEL_{name.upper()}={value}: only otlp and none are known")
        return reasons

    def _exports(self, exporter: str, endpoint: str) -> bool:
        named = bool(endpoint or self.exporter_otlp_endpoint)
        return named and exporter == "otlp" and self.exporter_otlp_protocol == "grpc" and not self.sdk_disabled


class _DataDirSecrets(PydanticBaseSettingsSource):
    """Reads secrets that the environment did not give from <data_dir>/secrets/."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        given = self.current_state
        if "internal_token" in given or "OCTAVO_INTERNAL_TOKEN" in given:
            return {}
        default = self.settings_cls.model_fields["data_dir"].default
        data_dir = Path(given.get("data_dir") or given.get("OCTAVO_DATA_DIR") or default)
        path = _secret_path(data_dir, "internal_token")
        return {"OCTAVO_INTERNAL_TOKEN": path.read_text().strip()} if path.is_file() else {}


def load(settings_class: type[S], environ: Mapping[str, str]) -> S:
    """Read a service's settings from the process environment and warn about unknown names in `environ`.

    Raises SettingsError with the variable's name and what is wrong with it, one sentence for all of them.
    """
    settings = read(settings_class)
    report_unknown(environ, env_names(settings_class))
    return settings


def read(settings_class: type[S], **given: Any) -> S:
    """Read settings from the process environment; what is given wins. Raises SettingsError, as `load` does."""
    try:
        return settings_class(**given)
    except ValidationError as error:
        raise SettingsError(
            "; ".join(f"{_location(settings_class, e['loc'])}: {e['msg']}" for e in error.errors(include_input=False)),
            hint="`octavo doctor` prints all settings",
        ) from error


def env_names(settings_class: type[BaseSettings]) -> frozenset[str]:
    """Names of the variables that a settings class reads."""
    return frozenset(_env_name(settings_class, name) for name in settings_class.model_fields)


def report_unknown(environ: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Warn about each OCTAVO_* variable that nobody reads, and return their names sorted.

    A name under a service's prefix counts only when `known` holds that service's names.
    """
    foreign = tuple(p for p in SERVICE_PREFIXES if not any(name.startswith(p) for name in known))
    everything = SHARED_NAMES | env_names(CommonSettings) | set(known)
    unknown = sorted(
        name
        for name in environ
        if name.upper().startswith(PREFIX) and name.upper() not in everything and not name.upper().startswith(foreign)
    )
    for name in unknown:
        similar = difflib.get_close_matches(name.upper(), everything, n=1)
        log.warning("settings.unknown", variable=name, did_you_mean=similar[0] if similar else "")
    return unknown


def redacted(settings: BaseSettings) -> dict[str, str]:
    """All settings by variable name, as text, with secrets and the passwords of addresses hidden."""
    shown: dict[str, str] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            text = REDACTED if value.get_secret_value() else ""
        else:
            text = redact_url(str(value))
        shown[_env_name(type(settings), name)] = text
    return shown


def redact_url(text: str) -> str:
    """Hide the password of an address such as postgresql://user:password@host; other text is returned as it is."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return REDACTED
    userinfo, at, where = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    query = "&".join(f"password={REDACTED}" if p.startswith("password=") else p for p in parts.query.split("&"))
    netloc = f"{user}{colon}{REDACTED if colon else ''}{at}{where}"
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def _env_name(settings_class: type[BaseSettings], field: str) -> str:
    alias = settings_class.model_fields[field].validation_alias
    prefix = str(settings_class.model_config.get("env_prefix", ""))
    return alias if isinstance(alias, str) else f"{prefix}{field}".upper()


def _location(settings_class: type[BaseSettings], location: tuple[int | str, ...]) -> str:
    first = str(location[0]) if location else ""
    return _env_name(settings_class, first) if first in settings_class.model_fields else first


def _secret_path(data_dir: Path, name: str) -> Path:
    return data_dir / "secrets" / name
