"""Copies of blocks on a GPU, many in one launch. Needs Triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from octavo_worker.kernels.triton.copy_blocks import copy_blocks


def copy_in_runs(pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """As if one after the other: pairs that do not meet go together."""
    for run in cut_runs(pairs):
        copy_blocks(pool, torch.tensor(run, dtype=torch.int64).to(pool.device))


def cut_runs(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The pairs in their order, in runs within which no target is a source or a target of another."""
    run: list[tuple[int, int]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for source, target in pairs:
        if source in targets or target in sources or target in targets:
            yield run
            run, sources, targets = [], set(), set()
        run.append((source, target))
        sources.add(source)
        targets.add(target)
    if run:
        yield run
