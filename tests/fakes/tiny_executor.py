"""A deterministic executor in plain Python: the next token is a hash of all tokens before it.

It keeps tokens in a memory of blocks as a model keeps keys and values, and reads the context back through the row's
table. So a wrong block, slot or sealed content changes the tokens that follow, and a test sees it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from octavo_worker.engine.plan import BatchPlan, Draft, KVOps, RowPlan, RowResult, StepResult
from octavo_worker.engine.types import Request, SamplingParams, SeqId, TokenLogprobs

VOCAB_SIZE = 97
T = TypeVar("T")


class Violation(BaseException):
    """The plan breaks a rule. Not an Exception: the engine must not take it for a failing row."""


def must(holds: bool, rule: str) -> None:
    """Raise Violation unless the rule holds."""
    if not holds:
        raise Violation(rule)


def next_token(context: Sequence[int], params: SamplingParams, choice: int = 0) -> int:
    """The token after a context; greedy requests depend on neither seed nor choice."""
    key = (params.seed, choice) if params.temperature else (0, 0)
    return zlib.crc32(array("q", [*key, *context]).tobytes()) % VOCAB_SIZE


def logprob(context: Sequence[int], token: int) -> float:
    """What a token gets after a context; no two tokens the same."""
    return _logprobs(context)[token]


def _logprobs(context: Sequence[int]) -> list[float]:
    key = zlib.crc32(array("q", context).tobytes())
    noises = ((((key ^ token * 0x9E3779B1) * 0x85EBCA6B) & 0xFFFFFFFF) >> 16 for token in range(VOCAB_SIZE))
    return [-(noise * VOCAB_SIZE + token) / 2**20 for token, noise in enumerate(noises)]


def best_tokens(context: Sequence[int], num: int) -> tuple[tuple[int, float], ...]:
    """The most likely tokens, best first."""
    return tuple(sorted(enumerate(_logprobs(context)), key=lambda pair: -pair[1])[:num])


def expected_output(request: Request, max_sequence_tokens: int, choice: int = 0) -> list[int]:
    """Brute force: the whole output of one choice, with no blocks, chunks or batches."""
    params, output = request.params, list(request.output)

    def ended() -> bool:
        if len(output) >= params.max_tokens or len(request.prompt) + len(output) >= max_sequence_tokens:
            return True
        return any(token in params.stop_token_ids for token in output)

    while not ended():
        output.append(next_token([*request.prompt, *output], params, choice))
    return output


class TinyExecutor:
    """Computes plans, and checks that each is within what it is allowed to do."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        fails: Callable[[BatchPlan], bool] = lambda plan: False,
        propose: Callable[[Sequence[int], SamplingParams], Draft] = lambda context, params: Draft(),
        lookahead: int = 0,
    ) -> None:
        self.lookahead = lookahead
        self.plans: list[BatchPlan] = []
        self._size = block_size
        self._memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._host: dict[int, list[int | None]] = {}
        self._kv_step = 0
        self._tables: dict[SeqId, list[int]] = {}
        self._params: dict[SeqId, SamplingParams] = {}
        self._fails = fails
        self._propose = propose

    @property
    def known(self) -> set[SeqId]:
        """Rows it keeps state of."""
        return set(self._tables)

    def run(self, plan: BatchPlan) -> StepResult:
        """Compute all rows, or raise after it has written into slots from the rows' starts on, as it may."""
        self._move(plan.step, plan.kv)
        if self._fails(plan):
            self._scribble(plan)
            raise RuntimeError("planted failure")
        self.plans.append(plan)
        self._params = self._renewed(plan, self._params, lambda params: params)
        self._tables = self._renewed(plan, self._tables, list)
        written: set[int] = set()
        results: dict[SeqId, RowResult] = {}
        for row in plan.rows:
            results[row.id] = self._run_row(row, written)
        return StepResult(rows=results)

    @staticmethod
    def _renewed(plan: BatchPlan, known: Mapping[SeqId, T], copy: Callable[[T], T]) -> dict[SeqId, T]:
        must(all(fork.origin in known for fork in plan.forks), "a fork of what was never told")
        left = {seq_id: value for seq_id, value in known.items() if seq_id not in plan.gone}
        must(not any(fork.twin in left for fork in plan.forks), "a fork takes the name of another")
        return left | {fork.twin: copy(known[fork.origin]) for fork in plan.forks}

    def _move(self, step: int, ops: KVOps) -> None:
        if step == self._kv_step:
            return
        self._kv_step = step
        for block, slot in ops.stores_out:
            self._host[slot] = list(self._memory[block])
        for source, target in ops.copies:
            self._memory[target] = list(self._memory[source])
        for slot, block in ops.loads:
            must(slot in self._host, "loads what was never stored")
            self._memory[block] = list(self._host[slot])

    def _scribble(self, plan: BatchPlan) -> None:
        tables = self._renewed(plan, self._tables, list)
        for row in plan.rows:
            known = [] if row.params is not None else tables[row.id]
            table = [*known[: row.first_block], *row.new_blocks]
            for position in range(row.start, row.start + len(row.tokens) + len(row.draft)):
                self._memory[table[position // self._size]][position % self._size] = -1

    def _run_row(self, row: RowPlan, written: set[int]) -> RowResult:
        if row.params is not None:
            must(row.id not in self._tables, "a known row came as new")
            must(row.first_block == 0, "a new row brings all of its blocks")
            self._params[row.id] = row.params
        must(row.params is not None or row.id in self._tables, "an unknown row came as known")
        table = self._tables.setdefault(row.id, [])
        must(row.first_block <= len(table), "blocks are missing")
        table[row.first_block :] = row.new_blocks  # by index: a row that is told twice is the same
        must(bool(row.tokens), "a row without tokens")
        end = row.start + len(row.tokens)
        fed = [*row.tokens, *row.draft.tokens]
        blocks = {table[position // self._size] for position in range(row.start, row.start + len(fed))}
        must(not blocks & written, "two rows write one block")
        written |= blocks
        for position, token in enumerate(fed, start=row.start):
            self._memory[table[position // self._size]][position % self._size] = token
        if not row.wants:
            return RowResult()
        context = self._read(table, end)
        params = self._params[row.id]
        scored = tuple(
            TokenLogprobs(logprob(context[: row.wants.start + 1 + i], token), 1) for i, token in enumerate(row.scored)
        )
        if not row.draws and not row.num_candidates:
            must(len(row.scored) == len(row.wants), "positions whose logits nobody needs")
            return RowResult(prompt_logprobs=scored)
        must(row.wants.stop == end, "the last fed token is the one that gives logits")
        must(bool(row.draws) != bool(row.num_candidates), "a token is drawn, or candidates are told")
        if row.num_candidates:
            return RowResult(candidates=best_tokens(context, row.num_candidates), prompt_logprobs=scored)
        must(row.draws[0] == row.id.choice, "a row draws for itself first")
        tokens: list[int] = []
        # Chains only: a node is right when it is the token that follows.
        for guess in [*row.draft.tokens, None]:
            token = next_token([*context, *tokens], params, row.id.choice)
            tokens.append(token)
            if guess != token:
                break
        wants_logprobs = params.num_logprobs is not None
        return RowResult(
            tokens=tuple(tokens),
            logprobs=tuple(TokenLogprobs(0.0, token) for token in tokens) if wants_logprobs else (),
            siblings=tuple(next_token(context, params, choice) for choice in row.draws[1:]),
            sibling_logprobs=(TokenLogprobs(0.0, 0),) * (len(row.draws) - 1) if wants_logprobs else (),
            prompt_logprobs=scored,
            draft=self._propose([*context, *tokens], params),
        )

    def _read(self, table: list[int], num_tokens: int) -> list[int]:
        context = [self._memory[table[i // self._size]][i % self._size] for i in range(num_tokens)]
        must(None not in context, "read a slot that was never written")
        must(-1 not in context, "read a slot that only a failed step has written")
        return [token for token in context if token is not None]
