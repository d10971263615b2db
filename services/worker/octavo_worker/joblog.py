"""Per job, the tokens that may leave this worker, from token 0 on; and the gate that closes when leases may be lost.

Writers append, readers look and wait: there is no queue, so a slow reader costs nothing. Knows no engine, SQL or gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError, Status
from octavo_common.jobs.spec import GenerationResult, JobFailure, TokenLogprob

# Readers that come late find the end here; after that the row has the result.
KEEP_S = 60.0
# Part of the lease after which no token leaves: the rest covers clocks and messages on their way.
SAFE_PART = 0.8


class JobElsewhere(OctavoError):
    """The job is not here under this fence: the row says where it is."""

    status, code = Status.ABORTED, "JOB_ELSEWHERE"


class PrefixDiffers(OctavoError):
    """The reader holds other tokens than this worker."""

    status, code = Status.FAILED_PRECONDITION, "PREFIX_DIFFERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Released tokens of one answer and what goes with them."""

    choice: int = 0
    first_token: int
    token_ids: tuple[int, ...]
    text: str
    # One a token, or none at all.
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_empty(self) -> bool:
        """It says nothing."""
        return not (self.token_ids or self.text or self.prompt_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended, as committed: with a result or a failure; with neither it was cancelled."""

    result: GenerationResult | None = None
    failure: JobFailure | None = None


class _Answer:
    """The released tokens of one answer."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.texts: list[str] = []
        # One a token, or none at all.
        self.logprobs: list[TokenLogprob] = []
        self.num_chars = 0


class JobLog:
    """The released tokens of one job under one fence. Written by the intake, read by streams."""

    def __init__(self, job_id: UUID, fence: int, *, lead_text: str = "", num_choices: int = 1) -> None:
        """``lead_text`` goes out with the first token (or with the end, if there is none): an echoed prompt."""
        self.job_id = job_id
        self.fence = fence
        self.lead_text = lead_text
        # Go out as the lead text does; set before the first token is released.
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        # They are still to come although tokens are here, those of an earlier attempt: readers from token 0 wait.
        self.awaits_prompt = False
        # Set once, after the row was committed.
        self.end: End | None = None
        # Why nothing more comes although there is no end.
        self.gone: str | None = None
        self._answers = tuple(_Answer() for _ in range(num_choices))
        self._changed = asyncio.Event()

    @property
    def num_choices(self) -> int:
        """Answers that it holds."""
        return len(self._answers)

    @property
    def ids(self) -> list[int]:
        """Released tokens of the first answer."""
        return self._answers[0].ids

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change. Take it before looking, wait after."""
        return self._changed

    @property
    def closed(self) -> bool:
        """Nothing more will be written."""
        return self.end is not None or self.gone is not None

    @property
    def text(self) -> str:
        """The whole text of the first answer so far."""
        return self.lead_text + "".join(self._answers[0].texts)

    def ids_of(self, choice: int) -> list[int]:
        """Released tokens of an answer."""
        return self._answers[choice].ids

    def logprobs_of(self, choice: int) -> tuple[TokenLogprob, ...]:
        """What is told of them."""
        return tuple(self._answers[choice].logprobs)

    def release(
        self, ids: Sequence[int], texts: Sequence[str], logprobs: Sequence[TokenLogprob] = (), *, choice: int = 0
    ) -> None:
        """Add tokens with the text of each. What comes together leaves together.

        Log-probabilities come for each token or for none; where their texts begin is found here.
        """
        assert len(ids) == len(texts) and len(logprobs) in (0, len(ids)), "a text for each token"
        if not ids or self.closed:
            return
        answer = self._answers[choice]
        answer.ids += ids
        answer.texts += texts
        if logprobs:
            offset = len(self.lead_text) + answer.num_chars
            for text, told in zip(texts, logprobs, strict=True):
                answer.logprobs.append(told._replace(text_offset=offset))
                offset += len(text)
        answer.num_chars += sum(map(len, texts))
        self._notify()

    def tell_prompt(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        """All that is told of the prompt is here."""
        self.prompt_logprobs, self.awaits_prompt = logprobs, False
        self._notify()

    def finish(self, end: End) -> None:
        """The end was committed."""
        if not self.closed:
            self.end = end
            self._notify()

    def drop(self, reason: str) -> None:
        """The job left this worker: readers must look at the row."""
        if not self.closed:
            self.gone = reason
            self._notify()

    def read(self, first_token: int, choice: int = 0) -> Piece:
        """Everything of an answer from a token on."""
        answer = self._answers[choice]
        if first_token == 0 and self.awaits_prompt and not self.closed:
            return Piece(choice=choice, first_token=0, token_ids=(), text="")
        leads = first_token == 0 and (bool(answer.ids) or self.end is not None)
        return Piece(
            choice=choice,
            first_token=first_token,
            token_ids=tuple(answer.ids[first_token:]),
            text=(self.lead_text if leads else "") + "".join(answer.texts[first_token:]),
            logprobs=tuple(answer.logprobs[first_token:]),
            prompt_logprobs=self.prompt_logprobs if leads else (),
        )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class LogBook:
    """The logs of this worker: one per job, that of its newest fence."""

    def __init__(self, clock: Clock, *, keep_s: float = KEEP_S) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._logs: dict[UUID, JobLog] = {}
        # Logs without a writer, in the order in which they closed.
        self._closed: list[tuple[float, JobLog]] = []
        self._arrived = asyncio.Event()
        self._shut = False

    def __len__(self) -> int:
        return len(self._logs)

    def open(self, log: JobLog) -> None:
        """Add a log; one of an older fence is dropped."""
        older = self._logs.get(log.job_id)
        if older is not None:
            older.drop("the job came back under a new fence")
        self._logs[log.job_id] = log
        self._arrived.set()
        self._arrived = asyncio.Event()

    def shut(self) -> None:
        """No job comes any more: nobody waits for one."""
        self._shut = True
        self._arrived.set()

    def close(self, log: JobLog) -> None:
        """Its writer is done with it: keep it a while for readers."""
        self._closed.append((self._clock.monotonic() + self._keep_s, log))

    def expire(self) -> None:
        """Forget what closed long enough ago."""
        now = self._clock.monotonic()
        while self._closed and self._closed[0][0] <= now:
            _, log = self._closed.pop(0)
            if self._logs.get(log.job_id) is log:
                del self._logs[log.job_id]

    async def arrival(self, job_id: UUID, fence: int, *, timeout_s: float) -> JobLog:
        """The job's log under the fence; waits for a job that is on its way. Raises JobElsewhere."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    arrived = self._arrived
                    log = self._logs.get(job_id)
                    if log is not None and log.fence == fence:
                        return log
                    if log is not None and log.fence > fence:
                        raise JobElsewhere(f"job {job_id} is here under a newer fence", hint="read the row")
                    if self._shut:
                        raise JobElsewhere("this worker takes no jobs any more", hint="read the row")
                    await arrived.wait()
        except TimeoutError:
            raise JobElsewhere(f"job {job_id} did not come here", hint="read the row") from None


class Gate:
    """Open while this process may believe in its leases: measured from the sending of the last good renewal."""

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._open_s = SAFE_PART * lease_s
        self._closes_at: float | None = None
        self._renewed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether a token may leave now."""
        return self._closes_at is not None and self._clock.monotonic() < self._closes_at

    def renew(self, sent_s: float) -> None:
        """A renewal that was sent at this monotonic time was answered well."""
        self._closes_at = max(sent_s + self._open_s, self._closes_at or 0.0)
        self._renewed.set()
        self._renewed = asyncio.Event()

    async def wait_open(self) -> None:
        """Wait until a token may leave."""
        while not self.is_open:
            await self._renewed.wait()
