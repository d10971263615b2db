"""What the executor does once a step, and what it does not pass over."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from octavo_worker.engine.plan import BatchPlan, Fork
from octavo_worker.engine.types import SeqId
from octavo_worker.kv.local import LocalTransfer
from octavo_worker.runtime.computing import Runner
from octavo_worker.runtime.executor import TorchExecutor
from octavo_worker.runtime.inputs import InputBuilder
from octavo_worker.verify.base import Verifier


def test_a_fork_of_an_unknown_sequence_raises_and_raises_again_when_the_step_is_repeated() -> None:
    inputs = InputBuilder(block_size=16, max_blocks=4)
    # A step without rows needs neither a model nor a verifier.
    executor = TorchExecutor(
        inputs=inputs,
        runner=cast(Runner, None),
        verifier=cast(Verifier, None),
        kv=LocalTransfer(torch.zeros(1, 1), torch.zeros(0, 1)),
    )
    plan = BatchPlan(step=1, rows=(), forks=(Fork(SeqId("unknown", 0), SeqId("twin", 0)),))
    for _ in range(2):
        with pytest.raises(KeyError):
            executor.run(plan)
    assert inputs.num_known == 0
    assert executor.run(BatchPlan(step=2, rows=())).rows == {}
