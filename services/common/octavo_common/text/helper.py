"""The parent's side of the render process: start it, ask it within a deadline, kill it. Knows nothing of templates."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from octavo_common.clock import Clock

# A message is its length in 4 bytes, little-endian, and JSON; as in render_process.
_HEADER_BYTES = 4


class HelperLost(Exception):
    """The helper ended, overstayed or said too much: it has to be killed."""


class Helper:
    """One running process. Not thread-safe, but `kill` may be called more than once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        script = Path(__file__).with_name("render_process.py")
        # Isolated and without the environment: no secret of this process is in its reach.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"LC_ALL": "C.UTF-8"},
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, request: bytes, limit_s: float, *, max_bytes: int) -> bytes:
        """Send a message and return the answer, both within the limit. After HelperLost only `kill` may be called."""
        deadline = self._clock.monotonic() + limit_s
        unsent = memoryview(len(request).to_bytes(_HEADER_BYTES, "little") + request)
        while unsent:
            self._wait(self._stdin.fileno(), select.POLLOUT, deadline, limit_s)
            try:
                unsent = unsent[os.write(self._stdin.fileno(), unsent) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise HelperLost("its process ended") from error
        length = int.from_bytes(self._read(_HEADER_BYTES, deadline, limit_s), "little")
        if length > max_bytes:
            raise HelperLost("it gave too much text")
        return self._read(length, deadline, limit_s)

    def kill(self) -> None:
        """End the process now and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()

    def _read(self, length: int, deadline: float, limit_s: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._wait(self._stdout.fileno(), select.POLLIN, deadline, limit_s)
            try:
                part = os.read(self._stdout.fileno(), min(length - len(data), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise HelperLost("its process ended")
            data += part
        return bytes(data)

    def _wait(self, fd: int, event: int, deadline: float, limit_s: float) -> None:
        left_s = deadline - self._clock.monotonic()
        poll = select.poll()
        poll.register(fd, event)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise HelperLost(f"it took longer than {limit_s:g} s")
