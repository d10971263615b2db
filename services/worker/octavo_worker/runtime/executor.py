"""Computes a plan: inputs, forward pass, logits for the wanted rows only, verification. Decides nothing."""

from __future__ import annotations

from octavo_worker.engine.plan import BatchPlan, RowResult, StepResult
from octavo_worker.engine.types import SeqId
from octavo_worker.kv.base import KVTransfer
from octavo_worker.runtime.choosing import choose
from octavo_worker.runtime.computing import Runner
from octavo_worker.runtime.inputs import InputBuilder
from octavo_worker.verify.base import Verifier

_NOTHING = RowResult()


class TorchExecutor:
    """The engine's executor over a torch model. One thread at a time."""

    def __init__(
        self,
        *,
        inputs: InputBuilder,
        runner: Runner,
        verifier: Verifier,
        kv: KVTransfer,
        poison_fresh_blocks: bool = False,
    ) -> None:
        self._inputs = inputs
        self._runner = runner
        self._verifier = verifier
        self._kv = kv
        # For tests: a block that was handed out holds NaN until it is written.
        self._poison = poison_fresh_blocks
        self._last_step = 0

    @property
    def lookahead(self) -> int:
        """Slots beyond a row's last token; none without drafts."""
        return 0

    def run(self, plan: BatchPlan) -> StepResult:
        """One result a row. Raises only before anything but slots from the rows' starts on was changed."""
        if plan.step != self._last_step:
            # Once, also for a step that is repeated in parts: an origin may be gone then. Not if it fails: whatever
            # went on without its forks would be wrong.
            self._inputs.renew(plan.forks, plan.gone)
            self._last_step = plan.step
        self._kv.begin(plan.step, plan.kv)
        results: dict[SeqId, RowResult] = {row.id: _NOTHING for row in plan.rows}
        if not plan.rows:
            return StepResult(rows=results)
        if self._poison:
            self._runner.poison(self._inputs.fresh_blocks(plan.rows))
        inputs = self._inputs.build(plan.rows)
        hidden_TD = self._runner.forward(inputs)
        results.update(choose(inputs, hidden_TD, self._runner, self._verifier))
        return StepResult(rows=results)
