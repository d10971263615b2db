"""Connections to Postgres: one pool per process, with timeouts that fit a latency path. Knows no tables."""

from __future__ import annotations

import json
import re
import select
from typing import Any

from sqlalchemy import event, make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

# Postgres cannot hold U+0000 or lone surrogates in jsonb, and a model may well produce the first. They are kept by an
# escape in the private use area; _ESCAPE itself is escaped too, so that every string comes back as it was.
_ESCAPE = "\uf8ff"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\uf8ff]")
_SUSPECT = re.compile(r"\\u(0000|d[89a-f]|f8ff)")
_ESCAPED = re.compile("\uf8ff([0-9a-f]{4})")

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 10


def connect(dsn: str, *, pool_size: int = 8, application_name: str = "octavo") -> AsyncEngine:
    """Make the process's one pool. Nothing is opened before the first use."""
    engine = create_async_engine(
        make_url(dsn).set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_use_lifo=True,
        connect_args=connect_args(application_name),
        json_serializer=dumps,
        json_deserializer=loads,
        # Errors are logged, and what a statement is given may be a prompt.
        hide_parameters=True,
    )
    event.listen(engine.sync_engine, "checkout", _check_alive)
    return engine


def connect_args(application_name: str, *, statement_timeout_s: float = STATEMENT_TIMEOUT_S) -> dict[str, Any]:
    """Parameters for libpq: a dead peer is noticed by either side within seconds."""
    options = {
        "statement_timeout": int(statement_timeout_s * 1000),
        "idle_in_transaction_session_timeout": 15_000,
        "lock_timeout": 5_000,
        # The server's side: locks of a host that vanished are freed soon.
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
    }
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        "application_name": application_name,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }


def _check_alive(connection: Any, *_: object) -> None:
    """Refuse a pooled connection that the server has closed; the pool then opens a new one.

    An idle connection has nothing to read but its end. A ping would find that out too, by a journey to the server and
    back before every statement; a peer that vanished without a word would keep it waiting as it does the statement.
    """
    raw = connection.driver_connection
    if raw.closed or _is_readable(raw.fileno()):
        raise InvalidatePoolError


def _is_readable(fileno: int) -> bool:
    # Not select(): it knows no descriptors beyond 1023.
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))


def dumps(value: Any) -> str:
    """JSON that jsonb takes, whatever the strings hold."""
    encoded = json.dumps(value)
    return json.dumps(_map_strings(value, _escape)) if _SUSPECT.search(encoded) else encoded


def loads(encoded: str | bytes) -> Any:
    """Inverse of dumps."""
    value = json.loads(encoded)
    raw = encoded.encode() if isinstance(encoded, str) else encoded
    return _map_strings(value, _unescape) if _ESCAPE.encode() in raw or b"\\uf8ff" in raw else value


def _escape(value: str) -> str:
    return _UNSTORABLE.sub(lambda m: f"{_ESCAPE}{ord(m.group()):04x}", value)


def _unescape(value: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m.group(1), 16)), value)


def _map_strings(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
