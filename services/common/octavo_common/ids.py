"""Makes identifiers: UUIDv7 for jobs (ordered by creation, RFC 9562), random UUIDs for processes, seeds, keys."""

from __future__ import annotations

import secrets
import time
import uuid


def new_job_id() -> uuid.UUID:
    """A UUIDv7: 48 bits of Unix milliseconds, then 74 random bits."""
    millis = time.time_ns() // 1_000_000
    value = (millis & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return uuid.UUID(int=value)


def new_process_id() -> uuid.UUID:
    """A random UUID. One per start: a restarted process never owns what its predecessor owned."""
    return uuid.uuid4()


def new_seed() -> int:
    """A non-negative 63-bit seed."""
    return secrets.randbits(63)


def new_api_key() -> str:
    """An API key: `ok-` and 32 random characters."""
    return "ok-" + secrets.token_urlsafe(24)
