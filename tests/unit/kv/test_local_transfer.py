"""Movements of blocks: their order, and that a step's are done once."""

import torch

from octavo_worker.engine.plan import NO_KV_OPS, KVOps
from octavo_worker.kv.host import map_slots
from octavo_worker.kv.local import LocalTransfer


def pool_of(num_blocks=6):
    return torch.arange(num_blocks * 12, dtype=torch.float32).reshape(num_blocks, 2, 2, 3).clone()


def test_stores_come_before_copies_and_copies_before_loads():
    pool = pool_of()
    before = pool.clone()
    transfer = LocalTransfer(pool, map_slots(pool, 4))
    # Block 1 is stored, then copied to, then copied from; block 2 was a source and is loaded into at the end.
    transfer.begin(1, KVOps(stores_out=((1, 0),), copies=((2, 1), (1, 3)), loads=((0, 2),)))
    assert torch.equal(pool[1], before[2]) and torch.equal(pool[3], before[2])
    assert torch.equal(pool[2], before[1])
    assert torch.equal(pool[[0, 4, 5]], before[[0, 4, 5]])


def test_a_source_may_be_copied_to_later_in_the_same_plan():
    pool = pool_of()
    before = pool.clone()
    LocalTransfer(pool, map_slots(pool, 0)).begin(1, KVOps(copies=((0, 1), (2, 0))))
    assert torch.equal(pool[1], before[0]) and torch.equal(pool[0], before[2])


def test_a_step_that_is_repeated_moves_nothing_again():
    pool = pool_of()
    before = pool.clone()
    transfer = LocalTransfer(pool, map_slots(pool, 2))
    ops = KVOps(stores_out=((0, 1),), copies=((1, 2),))
    transfer.begin(7, ops)
    # The forward pass of the first try wrote into what was given out again.
    pool[0], pool[1] = torch.nan, torch.nan
    transfer.begin(7, ops)
    assert torch.equal(pool[2], before[1])
    transfer.begin(8, KVOps(loads=((1, 5),)))
    assert torch.equal(pool[5], before[0])
    transfer.begin(8, NO_KV_OPS)


def test_host_memory_has_the_shape_of_blocks_whatever_their_type():
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        pool = torch.zeros(3, 2, 4, dtype=dtype)
        slots = map_slots(pool, 5)
        assert slots.shape == (5, 2, 4) and slots.dtype == dtype
        slots[4] = 1
        assert not slots[:4].any()
