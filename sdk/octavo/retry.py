"""Decides whether and when a failed call is tried again. Pure: no clock, no randomness, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from octavo.errors import OctavoError


class Safety(Enum):
    """What a second try of a call may do."""

    # Reads, and writes that come to the same when repeated (cancel).
    SAFE = "safe"
    # A submission with an idempotency key: the second try returns the first one's job.
    KEYED = "keyed"
    # May act twice.
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is. Delays grow by two from ``base_s`` to ``max_s``, with up to half of it taken off."""

    max_attempts: int = 6
    base_s: float = 0.1
    max_s: float = 2.0
    # A stream is resumed until this long has passed without a token or a new job id.
    stream_patience_s: float = 60.0

    def backoff_s(self, attempt: int, jitter: float) -> float:
        """Delay before try number ``attempt + 1``, for a jitter in [0, 1)."""
        return min(self.max_s, self.base_s * 2 ** min(attempt - 1, 16)) * (1.0 - 0.5 * jitter)

    def delay_s(
        self, error: OctavoError, safety: Safety, *, attempt: int, remaining_s: float, jitter: float
    ) -> float | None:
        """Delay before the next try of a unary call after ``attempt`` tries, or None when the error is the answer."""
        if attempt >= self.max_attempts or not may_retry(error, safety):
            return None
        delay = max(self.backoff_s(attempt, jitter), error.retry_after_s or 0.0)
        return delay if delay < remaining_s else None


class Patience:
    """Counts the failures of one long read (a stream, a watch) since it last got on, and says when to try again.

    Mutable; one per read. Before the first progress only ``max_attempts`` count: nothing is at stake yet, and a
    platform that is not there should be reported soon. After it there is a job, and ``stream_patience_s`` counts,
    from the first failure since it got on: a job may wait long before it says something, on a connection that is whole.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._num_failures = 0
        self._has_begun = False
        # Of the first failure since it got on.
        self._failed_s: float | None = None

    def progress(self) -> None:
        """Something new arrived."""
        self._num_failures = 0
        self._has_begun = True
        self._failed_s = None

    def delay_s(self, error: OctavoError, *, now_s: float, jitter: float) -> float:
        """Delay before the next try; raises ``error`` when it is time to give up.

        The first try after progress is at once: another gateway may answer, or this one on a new connection.
        """
        self._num_failures += 1
        if not self._has_begun:
            if self._num_failures >= self._policy.max_attempts:
                raise error
            return self._policy.backoff_s(self._num_failures, jitter)
        if self._failed_s is None:
            self._failed_s = now_s
        if now_s - self._failed_s > self._policy.stream_patience_s:
            raise error
        return 0.0 if self._num_failures == 1 else self._policy.backoff_s(self._num_failures - 1, jitter)


def may_retry(error: OctavoError, safety: Safety) -> bool:
    """True when a second try can help and cannot harm.

    Only UNAVAILABLE says that the service, not the request, is at fault for now. A quota is the caller's to wait for.
    """
    return safety is not Safety.UNSAFE and error.status == "UNAVAILABLE"


def is_broken(error: OctavoError) -> bool:
    """True when a stream broke rather than ended: the job may go on behind it.

    Proxies, dying servers and resets show up under several statuses; none of those carries a word of Octavo.
    """
    if error.told:
        return error.status == "UNAVAILABLE"
    return error.status in ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED")
