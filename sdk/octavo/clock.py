"""The one place of the SDK that reads time, waits and draws at random. Clients take the clock as a parameter."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
import uuid


class Clock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds on a clock that only moves forward."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Block this thread."""
        if seconds > 0:
            threading.Event().wait(seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        if seconds > 0:
            await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """A random number in [0, 1) that keeps clients from retrying in step."""
        return secrets.randbelow(1 << 20) / (1 << 20)


def new_idempotency_key() -> str:
    """A key for a submission whose caller gave none, so that it may be repeated."""
    return f"sdk-{uuid.uuid4()}"
