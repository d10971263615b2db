"""Keeps one process alive. Knows nothing of what the process does; its health is told to it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from octavo_cli.supervisor import logs, processes
from octavo_cli.supervisor.plan import ServiceSpec
from octavo_cli.supervisor.restarts import History, RestartPolicy
from octavo_cli.supervisor.state import ServiceState
from octavo_common.clock import Clock
from octavo_common.exits import MISCONFIGURED

log = structlog.get_logger(__name__)

_POLL_S = 0.2


class Keeper:
    """One process and its history. Mutable; lives in the supervisor's event loop."""

    def __init__(
        self,
        spec: ServiceSpec,
        *,
        environ: Mapping[str, str],
        log_file: Path,
        clock: Clock,
        policy: RestartPolicy,
        on_news: Callable[[], None] = lambda: None,
        has_peer: Callable[[], bool] = lambda: False,
    ) -> None:
        """``on_news`` is called when the process ends and when it starts.

        ``has_peer`` tells whether another process of the role is ready.
        """
        self.spec = spec
        self._environ = environ
        self._log_file = log_file
        self._clock = clock
        self._policy = policy
        self._on_news = on_news
        self._has_peer = has_peer
        self._history = History()
        self._process: subprocess.Popen[bytes] | None = None
        self._started: int | None = None
        self._since_s = 0.0
        self._stopping = False
        # In this life of the process, and in any.
        self._is_settled = False
        self._was_ready = False
        self._state = "starting"
        self._reason = "is about to start"

    @property
    def pid(self) -> int | None:
        """The living process, if there is one."""
        return None if self._process is None else self._process.pid

    @property
    def is_crashing(self) -> bool:
        """True when the process ended early too often in a row."""
        return self._history.is_crashing(self._policy)

    @property
    def is_ready(self) -> bool:
        """True when the last look at it found nothing to complain about."""
        return self._state == "ready"

    @property
    def failure(self) -> str:
        """Why the process was given up; empty while it is kept."""
        return self._reason if self._state == "failed" else ""

    def state(self) -> ServiceState:
        """What there is to say about it."""
        return ServiceState(
            name=self.spec.name,
            role=self.spec.role,
            state=self._state,
            pid=self.pid,
            started=self._started if self._process is not None else None,
            address=self.spec.address,
            http_address=self.spec.http_address,
            restarts=self._history.num_restarts,
            reason=self._reason,
            log=str(self._log_file),
        )

    def tell(self, reason: str) -> None:
        """Take a look's finding in: why the process is not ready, or nothing."""
        if self._process is None or self._stopping:
            return
        if not reason:
            self._state, self._reason = "ready", ""
            self._is_settled = self._was_ready = True
        else:
            self._state = "not ready" if self._state in ("ready", "not ready") else "starting"
            self._reason = reason

    async def run(self) -> None:
        """Start the process, and again whenever it ends, until ``stop`` or a failure that no restart heals."""
        while not self._stopping:
            self._start()
            assert self._process is not None
            code = await processes.wait_end(self._process, self._clock)
            processes.kill_group(self._process.pid)
            self._process = None
            self._on_news()
            if self._stopping:
                log.info("service.stopped", name=self.spec.name, code=code)
                break
            uptime_s = self._clock.monotonic() - self._since_s
            # Once it was ready its settings were good; what is wrong since then may be put right.
            if code == MISCONFIGURED and not self._was_ready:
                self._state, self._reason = "failed", logs.last_words(self._log_file).partition(": ")[2]
                log.warning("service.failed", name=self.spec.name, reason=self._reason)
                return
            self._history = self._history.after_end(uptime_s, self._policy, was_ready=self._is_settled)
            delay_s = self._history.delay_s(self._policy, has_peer=self._has_peer())
            self._state = "crashing" if self.is_crashing else "waiting"
            self._reason = f"{_ending(code)}{self._last_words()}; next try in {delay_s:.1f} s"
            log.warning("service.ended", name=self.spec.name, code=code, uptime_s=round(uptime_s, 1))
            await self._wait(delay_s)
        self._state, self._reason = "stopped", ""

    def _start(self) -> None:
        self._since_s = self._clock.monotonic()
        env = {**self._environ, **self.spec.env}
        self._process = processes.spawn(self.spec.argv, env, self._log_file, cwd=Path.cwd())
        self._started = processes.start_ticks(self._process.pid)
        self._state, self._reason = "starting", "was started just now"
        self._is_settled = False
        self._on_news()
        log.info("service.started", name=self.spec.name, pid=self._process.pid)

    async def _wait(self, seconds: float) -> None:
        end_s = self._clock.monotonic() + seconds
        while not self._stopping and self._clock.monotonic() < end_s:
            await self._clock.sleep(min(_POLL_S, seconds))

    def terminate(self) -> None:
        """Ask the process to end; `run` starts it again unless ``stop`` was said."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the process to end for good."""
        self._stopping = True
        self._state = "stopping"
        self.terminate()

    def kill(self) -> None:
        """End the process and its group at once."""
        if self._process is not None:
            processes.kill_group(self._process.pid)

    def _last_words(self) -> str:
        words = logs.last_words(self._log_file)
        return f" ({words})" if words else ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
