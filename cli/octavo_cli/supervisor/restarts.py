"""Decides when a process that ended is started again. Pure: no clock, no processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays grow with each early end in a row; after ``max_early`` of them the process is tried only seldom."""

    # An end before this, or before it was ever ready, is early: the process did not do its work.
    settled_s: float = 10.0
    max_early: int = 5
    base_s: float = 0.1
    max_s: float = 5.0
    # A fault outside (a database that is away) may heal, so a crashing process is never given up for good.
    seldom_s: float = 60.0
    # While another process of the role is ready: that one takes over now, and a start (a worker loads its model)
    # would take cores and memory bandwidth from it.
    peer_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How a process has fared."""

    num_restarts: int = 0
    num_early: int = 0

    def after_end(self, uptime_s: float, policy: RestartPolicy, *, was_ready: bool) -> History:
        """The history after one more end. A model may load for longer than any bound, and its process end then."""
        early = self.num_early + 1 if uptime_s < policy.settled_s or not was_ready else 0
        return History(num_restarts=self.num_restarts + 1, num_early=early)

    def is_crashing(self, policy: RestartPolicy) -> bool:
        """True when it has ended early so often in a row that someone has to look."""
        return self.num_early >= policy.max_early

    def delay_s(self, policy: RestartPolicy, *, has_peer: bool = False) -> float:
        """Time to the next start. ``has_peer``: another process of the role is ready."""
        if self.is_crashing(policy):
            return policy.seldom_s
        delay_s = min(policy.max_s, policy.base_s * 2 ** max(0, self.num_early - 1))
        return max(delay_s, policy.peer_s) if has_peer else delay_s
