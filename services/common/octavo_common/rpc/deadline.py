"""Carries the deadline of the call that is being served on to the calls that serving it makes."""

from __future__ import annotations

from contextvars import ContextVar

from octavo_common.clock import Clock

# What the way back to the caller takes: the inner call must fail first, so that its error can be told.
MARGIN_S = 0.05
_deadline: ContextVar[float | None] = ContextVar("octavo_rpc_deadline", default=None)


def enter(time_remaining_s: float | None, clock: Clock) -> None:
    """Note that the current task serves a call that ends so many seconds from now; None has no end.

    Never undone: each call is served by a task of its own, and the note ends with it.
    """
    _deadline.set(None if time_remaining_s is None else clock.monotonic() + time_remaining_s)


def leave() -> None:
    """Forget the deadline in the current task: for work that goes on when its caller is gone."""
    _deadline.set(None)


def outgoing(timeout_s: float | None, clock: Clock) -> float | None:
    """The timeout for a call made now: the wished one, cut to what the call being served has left. At least 0."""
    deadline = _deadline.get()
    if deadline is None:
        return timeout_s
    left = max(deadline - clock.monotonic() - MARGIN_S, 0.0)
    return left if timeout_s is None else min(timeout_s, left)
