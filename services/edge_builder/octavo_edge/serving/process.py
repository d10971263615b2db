"""One build as a process of its own: begun, listened to, asked to stop, killed. Knows nothing of jobs.

The process leads a group of its own, so that whatever it has begun ends with it; and it ends by itself when the pipe to
this process breaks, however this one dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Self

import structlog

from octavo_edge.events import Event, NoEvent, from_line

log = structlog.get_logger(__name__)

# Of what a build has said on stderr.
_NUM_LINES = 200
# A line of events has the metrics of a stage; libraries may print long ones, too.
_MAX_LINE_BYTES = 8 << 20


class BuildProcess:
    """A running build."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._words: deque[str] = deque(maxlen=_NUM_LINES)
        self._stderr = asyncio.create_task(self._listen(), name="build stderr")

    @classmethod
    async def start(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Begin ``python -m octavo_edge build`` with these arguments."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "octavo_edge", "build", *arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(environment),
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Process id, and that of its group."""
        return self._process.pid

    @property
    def words(self) -> list[str]:
        """The last lines that it has said to people."""
        return list(self._words)

    async def events(self) -> AsyncIterator[Event]:
        """What it tells, until it closes its stdout."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than any event: a library's
                continue
            if not line:
                return
            try:
                yield from_line(line.decode(errors="replace"))
            except NoEvent:
                log.debug("build.printed", line=line.decode(errors="replace").rstrip()[:500])

    async def wait(self) -> int:
        """Its exit code, negative for a signal. What it has begun and left behind is killed."""
        code = await self._process.wait()
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(self._stderr)
        self._stderr.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def ask_to_stop(self) -> None:
        """Let it end at its next step."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it has begun, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:
                continue
            if not line:
                return
            self._words.append(line.decode(errors="replace").rstrip())
