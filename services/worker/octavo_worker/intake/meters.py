"""Counts what the engine does and how jobs end, under the names that all services share."""

from __future__ import annotations

from octavo_common.jobs.spec import JobFailure, ModelCard
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments
from octavo_worker.engine.types import Delta, StepStats
from octavo_worker.intake.attempt import Attempt


class Meters:
    """Feeds one worker's instruments. Gauges are read from the last step's figures, also on another thread."""

    def __init__(self, instruments: Instruments, card: ModelCard) -> None:
        self._instruments = instruments
        self._labels = {names.MODEL_NAME: card.name}
        self._num_blocks = card.num_blocks
        self.stats = StepStats(num_free_blocks=card.num_blocks)
        config = {**self._labels, "block_size": str(card.block_size), "num_blocks": str(card.num_blocks)}
        observe = instruments.observe
        observe(names.NUM_REQUESTS_RUNNING, lambda: [(self.stats.num_running, self._labels)])
        observe(names.NUM_REQUESTS_WAITING, lambda: [(self.stats.num_waiting, self._labels)])
        observe(names.KV_CACHE_USAGE, lambda: [(self.stats.num_used_blocks / self._num_blocks, self._labels)])
        observe(names.CACHE_CONFIG_INFO, lambda: [(1, config)])

    def step(self, stats: StepStats, step_s: float) -> None:
        """A step of the engine."""
        record, add = self._instruments.record, self._instruments.add
        record(names.STEP_TIME, step_s, self._labels)
        record(names.ITERATION_TOKENS, stats.num_decode_tokens + stats.num_prompt_tokens, self._labels)
        if stats.num_prompt_tokens:
            add(names.PROMPT_TOKENS, stats.num_prompt_tokens, self._labels)
        if stats.num_preempted:
            add(names.NUM_PREEMPTIONS, stats.num_preempted, self._labels)

    def tokens(self, attempt: Attempt, delta: Delta, now: float) -> None:
        """A job's share of a step; called after the attempt has noted it and before it takes the tokens."""
        record, add = self._instruments.record, self._instruments.add
        if "scheduled" in delta.events:
            add(names.PREFIX_CACHE_QUERIES, len(attempt.job.prompt_ids), self._labels)
            add(names.PREFIX_CACHE_HITS, delta.num_cached, self._labels)
            # A job waits for its first step once, wherever it goes on.
            if attempt.claimed.earlier_start_s is None:
                self._time(names.REQUEST_QUEUE_TIME, attempt.queue_s)
        # The token that is computed for the prompt's sake is nobody's.
        if not delta.tokens or not attempt.spec.max_tokens:
            return
        add(names.GENERATION_TOKENS, len(delta.tokens), self._labels)
        if delta.id.choice:
            # The gap between tokens is that of the first answer: others come in the same steps.
            return
        if attempt.last_token_s is not None:
            record(names.INTER_TOKEN_LATENCY, now - attempt.last_token_s, self._labels)
        elif not attempt.job.emitted_ids:
            record(names.TIME_TO_FIRST_TOKEN, max(0.0, now - attempt.accepted_s), self._labels)

    def succeeded(self, attempt: Attempt, finish_reason: str) -> None:
        """A result was committed."""
        record = self._instruments.record
        self._instruments.add(names.REQUEST_SUCCESS, 1, {**self._labels, names.FINISHED_REASON: finish_reason})
        record(names.REQUEST_PROMPT_TOKENS, len(attempt.job.prompt_ids), self._labels)
        record(names.REQUEST_GENERATION_TOKENS, attempt.num_tokens, self._labels)
        record(names.REQUEST_PARAMS_MAX_TOKENS, attempt.spec.max_tokens, self._labels)
        begun_s, first_s, last_s = attempt.queue_s, attempt.time_to_first_token_s, attempt.total_s
        self._time(names.E2E_REQUEST_LATENCY, last_s)
        self._time(names.REQUEST_INFERENCE_TIME, last_s, since_s=begun_s)
        self._time(names.REQUEST_PREFILL_TIME, first_s, since_s=begun_s)
        self._time(names.REQUEST_DECODE_TIME, last_s, since_s=first_s)

    def _time(self, metric: names.Metric, until_s: float | None, *, since_s: float | None = 0.0) -> None:
        """Record a time of the job, unless one of its ends is not known."""
        if until_s is not None and since_s is not None:
            self._instruments.record(metric, max(0.0, until_s - since_s), self._labels)

    def failed(self, failure: JobFailure) -> None:
        """A failure was committed."""
        self._instruments.add(names.REQUEST_FAILURE, 1, {**self._labels, names.CODE: failure.code})
