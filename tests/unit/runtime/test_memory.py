"""The pool: aligned, zero, and free until it is written."""

from __future__ import annotations

import psutil
import torch

from octavo_worker.runtime.memory import allocate_pool, block_bytes


def test_an_untouched_pool_takes_no_memory():
    before = psutil.Process().memory_info().rss
    pool = allocate_pool((4096, 2, 2, 16, 8, 64), torch.float32)
    assert pool.nbytes == 512 * 2**20
    assert psutil.Process().memory_info().rss - before < 16 * 2**20
    assert pool[17].count_nonzero() == 0


def test_a_poisoned_pool_holds_nan():
    assert allocate_pool((3, 2, 2, 16, 1, 8), torch.float32, poison=True).isnan().all()


def test_the_pool_outlives_the_names_it_was_made_under():
    pools = [allocate_pool((64, 2, 2, 16, 2, 8), torch.float32) for _ in range(4)]
    for index, pool in enumerate(pools):
        pool.fill_(index)
    assert [int(pool.min()) for pool in pools] == [int(pool.max()) for pool in pools] == [0, 1, 2, 3]


def test_block_bytes_are_those_of_the_pool():
    sizes = {"num_layers": 3, "block_size": 16, "num_kv_heads": 2, "head_dim": 8}
    pool = allocate_pool((5, 3, 2, 16, 2, 8), torch.float32)
    assert 5 * block_bytes(**sizes, dtype=torch.float32) == pool.nbytes
