"""How settings are read, reported and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict
from structlog.testing import capture_logs

from octavo_common import settings as module
from octavo_common.settings import (
    CommonSettings,
    OtelSettings,
    SettingsError,
    env_names,
    load,
    redact_url,
    redacted,
    report_unknown,
)

DSN = "postgresql://me:hunter2@db:5432/octavo"


class GatewaySettings(CommonSettings):
    model_config = SettingsConfigDict(env_prefix="OCTAVO_GATEWAY_", frozen=True, extra="ignore", populate_by_name=True)
    grpc_port: int = 50051
    job_retention_s: float = Field(default=1.0, validation_alias="OCTAVO_JOB_RETENTION")


@pytest.fixture(autouse=True)
def _no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("OCTAVO_", "OTEL_")):
            monkeypatch.delenv(name)


def test_defaults_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CommonSettings().lease_s == 15.0
    monkeypatch.setenv("OCTAVO_LEASE_S", "3")
    monkeypatch.setenv("OCTAVO_GATEWAY_GRPC_PORT", "7")
    monkeypatch.setenv("OCTAVO_GRPC_PORT", "8")
    monkeypatch.setenv("OCTAVO_JOB_RETENTION", "9")
    monkeypatch.setenv("OCTAVO_DATABASE_URL", DSN)
    read = GatewaySettings()
    assert (read.lease_s, read.grpc_port, read.job_retention_s, read.database_url) == (3.0, 7, 9.0, DSN)


def test_keywords_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_HOST", "0.0.0.0")
    assert GatewaySettings(host="::1", grpc_port=1).host == "::1"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        CommonSettings().host = "x"


def test_the_token_comes_from_the_data_directory_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="token"):
        CommonSettings(data_dir=tmp_path).require_internal_token()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "internal_token").write_text("from-file\n")
    assert CommonSettings(data_dir=tmp_path).require_internal_token() == "from-file"
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path))
    assert GatewaySettings().require_internal_token() == "from-file"
    monkeypatch.setenv("OCTAVO_INTERNAL_TOKEN", "from-env")
    assert GatewaySettings().require_internal_token() == "from-env"


def test_a_missing_database_is_said_with_a_hint() -> None:
    with pytest.raises(SettingsError) as caught:
        CommonSettings().require_database_url()
    assert "OCTAVO_DATABASE_URL" in caught.value.hint


def test_wrong_values_are_named_by_variable_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LEASE_S", "hunter2")
    monkeypatch.setenv("OCTAVO_GATEWAY_GRPC_PORT", "many")
    with pytest.raises(SettingsError) as caught:
        load(GatewaySettings, {})
    assert "OCTAVO_LEASE_S" in caught.value.message
    assert "OCTAVO_GATEWAY_GRPC_PORT" in caught.value.message
    assert "hunter2" not in caught.value.message


def test_unknown_names_are_reported_with_a_guess() -> None:
    environ = {
        "OCTAVO_LEASE": "1",
        "OCTAVO_GATEWAY_GRPC_PROT": "1",
        "OCTAVO_GATEWAY_GRPC_PORT": "1",
        "OCTAVO_WORKER_MODEL": "sibling",
        "OCTAVO_API_KEY": "of clients",
        "OCTAVO_CONSOLE_PORT": "of the console",
        "OCTAVO_ADMIN_KEY_FILE": "of the console",
        "PATH": "/bin",
    }
    with capture_logs() as logs:
        assert report_unknown(environ, env_names(GatewaySettings)) == ["OCTAVO_GATEWAY_GRPC_PROT", "OCTAVO_LEASE"]
    assert {(line["variable"], line["did_you_mean"]) for line in logs} == {
        ("OCTAVO_LEASE", "OCTAVO_LEASE_S"),
        ("OCTAVO_GATEWAY_GRPC_PROT", "OCTAVO_GATEWAY_GRPC_PORT"),
    }


def test_what_is_shown_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = redacted(GatewaySettings(internal_token="s3cret", database_url=DSN, data_dir=Path("/d")))  # pyright: ignore[reportArgumentType] - as the environment gives it
    assert shown["OCTAVO_INTERNAL_TOKEN"] == module.REDACTED
    assert shown["OCTAVO_DATABASE_URL"] == f"postgresql://me:{module.REDACTED}@db:5432/octavo"
    assert shown["OCTAVO_DATA_DIR"] == "/d"
    assert shown["OCTAVO_GATEWAY_GRPC_PORT"] == "50051"
    assert "s3cret" not in repr(GatewaySettings(internal_token="s3cret"))  # pyright: ignore[reportArgumentType] - as above
    assert "hunter2" not in repr(GatewaySettings(database_url=DSN))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:a:b@c@host/db?password=x&sslmode=require",
         "postgresql://me:********@host/db?password=********&sslmode=require"),
        ("postgresql://[bad", "********"),
        ("no url", "no url"),
    ],
)  # fmt: skip
def test_passwords_of_addresses_are_hidden(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "true"}, False, False),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            False,
            False,
        ),
    ],
)
def test_the_standard_variables_decide_about_export(
    environ: dict[str, str], traces: bool, metrics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    read = OtelSettings()
    assert (read.exports_traces, read.exports_metrics) == (traces, metrics)
    assert bool(read.ignored()) == ("OTEL_EXPORTER_OTLP_PROTOCOL" in environ)
