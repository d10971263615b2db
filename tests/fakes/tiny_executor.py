"""A deterministic executor in plain Python: the next token is a hash of all tokens before it.

It keeps tokens in a memory of blocks as a model keeps keys and values, and reads the context back through the row's
table. So a wrong block, slot or sealed content changes the tokens that follow, and a test sees it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence

from octavo_worker.engine.plan import BatchPlan, Draft, RowPlan, RowResult, StepResult
from octavo_worker.engine.types import Request, SamplingParams, SeqId

VOCAB_SIZE = 97


class Violation(BaseException):
    """The plan breaks a rule. Not an Exception: the engine must not take it for a failing row."""


def must(holds: bool, rule: str) -> None:
    """Raise Violation unless the rule holds."""
    if not holds:
        raise Violation(rule)


def next_token(context: Sequence[int], params: SamplingParams) -> int:
    """The token after a context; greedy requests do not depend on the seed."""
    seed = params.seed if params.temperature else 0
    return zlib.crc32(array("q", [seed, *context]).tobytes()) % VOCAB_SIZE


def expected_output(request: Request, max_sequence_tokens: int) -> list[int]:
    """Brute force: the whole output of a request, with no blocks, chunks or batches."""
    params, output = request.params, list(request.output)

    def ended() -> bool:
        if len(output) >= params.max_tokens or len(request.prompt) + len(output) >= max_sequence_tokens:
            return True
        return any(token in params.stop_token_ids for token in output)

    while not ended():
        output.append(next_token([*request.prompt, *output], params))
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
        self._tables: dict[SeqId, list[int]] = {}
        self._params: dict[SeqId, SamplingParams] = {}
        self._fails = fails
        self._propose = propose

    @property
    def known(self) -> set[SeqId]:
        """Rows it keeps state of."""
        return set(self._tables)

    def run(self, plan: BatchPlan) -> StepResult:
        """Compute all rows, or raise and change nothing."""
        if self._fails(plan):
            raise RuntimeError("planted failure")
        self.plans.append(plan)
        for seq_id in plan.gone:
            self._tables.pop(seq_id, None)
            self._params.pop(seq_id, None)
        written: set[int] = set()
        results: dict[SeqId, RowResult] = {}
        for row in plan.rows:
            results[row.id] = self._run_row(row, written)
        return StepResult(rows=results)

    def _run_row(self, row: RowPlan, written: set[int]) -> RowResult:
        if row.params is not None:
            must(row.id not in self._tables, "a known row came as new")
            must(row.first_block == 0, "a new row brings all of its blocks")
            self._params[row.id] = row.params
        must(row.params is not None or row.id in self._tables, "an unknown row came as known")
        table = self._tables.setdefault(row.id, [])
        must(row.first_block == len(table), "blocks came twice or are missing")
        table[row.first_block :] = row.new_blocks
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
        must(list(row.wants) == [end - 1], "the last fed token is the one that gives logits")
        context = self._read(table, end)
        params = self._params[row.id]
        tokens: list[int] = []
        # Chains only: a node is right when it is the token that follows.
        for guess in [*row.draft.tokens, None]:
            token = next_token([*context, *tokens], params)
            tokens.append(token)
            if guess != token:
                break
        return RowResult(tokens=tuple(tokens), draft=self._propose([*context, *tokens], params))

    def _read(self, table: list[int], num_tokens: int) -> list[int]:
        context = [self._memory[table[i // self._size]][i % self._size] for i in range(num_tokens)]
        must(None not in context, "read a slot that was never written")
        return [token for token in context if token is not None]
