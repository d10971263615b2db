"""Preemption by swap: what moves, what stays, when it is recomputed instead, and that no token changes."""

import pytest
from fakes.engines import Bench, make_beams, make_request
from fakes.naive_beams import expected_beams
from fakes.tiny_executor import TinyExecutor, expected_output

from octavo_worker.engine.batch import Batch
from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.sequence import Sequence, Story
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import FinishReason, SeqId


def parts(*, num_blocks=8, num_slots=4, block_size=4):
    pool = BlockPool(num_blocks, block_size)
    tables = Tables(pool, lookahead=0)
    return pool, tables, Swapper(tables, num_slots=num_slots)


def running(tables, prompt, *, num_computed=None, id="a"):
    request = make_request(id, prompt)
    seq = Sequence(
        request=request,
        id=SeqId(id, 0),
        rank=(0, 0, 0),
        root=b"",
        tokens=[*prompt],
        story=Story(),
        draws=(0,),
    )
    assert tables.begin(seq, num_spare=0)
    seq.num_computed = len(prompt) - 1 if num_computed is None else num_computed
    tables.seal(seq)
    return seq


def fill_with_others(pool):
    """Blocks that hold content of others now, so that nothing is found where it was."""
    taken = pool.alloc(pool.num_free + pool.num_cached)
    pool.release(taken)


def test_a_stored_sequence_frees_its_blocks_and_gets_as_many_back():
    pool, tables, swapper = parts()
    seq = running(tables, range(10))
    blocks = list(seq.table)
    assert swapper.store([seq])
    stores, loads = swapper.take_ops()
    assert [block for block, _ in stores] == blocks and not loads
    assert pool.num_used == 0 and swapper.num_free == 1
    fill_with_others(pool)
    assert swapper.load([seq])
    stores_again, loads = swapper.take_ops()
    assert not stores_again
    assert dict(loads) == {slot: new for (_, slot), new in zip(stores, seq.table, strict=True)}
    # A slot is free when its load has been run, not before.
    assert swapper.num_free == 1
    swapper.on_loaded()
    assert swapper.num_free == 4
    swapper.check_integrity([seq])


def test_blocks_that_others_hold_stay_and_are_not_moved():
    pool, tables, swapper = parts()
    first = running(tables, range(11), id="a")
    second = running(tables, range(11), id="b")
    shared = first.table[:2]
    assert second.table[:2] == shared
    assert swapper.store([second])
    assert [block for block, _ in swapper.take_ops()[0]] == [3]
    assert all(pool.num_refs(block) == 2 for block in shared)
    tables.release(first)
    assert all(pool.num_refs(block) == 1 for block in shared)
    assert swapper.load([second])
    assert second.table[:2] == shared


def test_what_is_still_cached_where_it_was_is_not_loaded():
    pool, tables, swapper = parts()
    seq = running(tables, range(10))
    before = list(seq.table)
    swapper.store([seq])
    swapper.take_ops()
    assert swapper.load([seq])
    # Two full blocks were sealed; the tail had no name to be found by.
    assert seq.table[:2] == before[:2]
    assert [block for _, block in swapper.take_ops()[1]] == seq.table[2:]
    assert pool.num_used == 3


def test_nothing_changes_when_host_memory_has_no_room_or_the_pool_has_none():
    pool, tables, swapper = parts(num_slots=2)
    seq = running(tables, range(10))
    assert not swapper.store([seq])
    assert len(seq.table) == 3 and swapper.num_free == 2
    pool, tables, swapper = parts()
    seq = running(tables, range(10))
    swapper.store([seq])
    others = pool.alloc(6)
    parked = list(seq.parked)
    assert not swapper.load([seq])
    assert seq.parked == parked and not seq.table
    pool.check_integrity([others])


def test_dissolving_gives_slots_and_kept_blocks_back():
    pool, tables, swapper = parts()
    first, second = running(tables, range(11), id="a"), running(tables, range(11), id="b")
    swapper.store([second])
    swapper.dissolve([second])
    assert swapper.num_free == 4 and not second.parked and second.num_computed == 0
    tables.release(first)
    assert pool.num_used == 0


def preempting(num_host_slots, **params):
    bench = Bench(num_blocks=8, num_host_slots=num_host_slots, **params)
    requests = [make_request(id, range(10 * n, 10 * n + 12), max_tokens=16) for n, id in enumerate(("old", "young"))]
    for request in requests:
        bench.add(request)
    fed, kv = 0, []
    while bench.engine.has_work:
        bench.step()
        fed += sum(len(row.tokens) for row in bench.executor.plans[-1].rows)
        kv.append(bench.executor.plans[-1].kv)
    for request in requests:
        assert bench.outcomes[request.id].tokens == expected_output(request, bench.limits.max_sequence_tokens)
    assert bench.outcomes["young"].events[:4] == ["scheduled", "first_token", "preempted", "resumed"]
    bench.assert_empty()
    return fed, kv


def test_swapped_work_is_not_repeated():
    # Every token is fed once, but for the last of each output.
    fed, kv = preempting(num_host_slots=8)
    assert fed == 2 * (12 + 15)
    assert sum(len(ops.stores_out) for ops in kv) > 0 and sum(len(ops.loads) for ops in kv) > 0
    recomputed, _ = preempting(num_host_slots=0)
    assert recomputed > fed


def test_stores_and_loads_never_share_a_plan():
    _, kv = preempting(num_host_slots=8)
    assert not any(ops.stores_out and ops.loads for ops in kv)


def test_without_room_in_host_memory_it_is_recomputed():
    fed, kv = preempting(num_host_slots=1)
    assert fed > 2 * (12 + 15)
    assert not any(ops.stores_out or ops.loads for ops in kv)


def test_abort_of_what_lies_in_host_memory_gives_its_slots_back():
    bench = Bench(num_blocks=8, num_host_slots=8)
    for n, id in enumerate(("old", "young")):
        bench.add(make_request(id, range(10 * n, 10 * n + 12), max_tokens=16))
    while not bench.outcomes["young"].num_preemptions:
        bench.step()
    assert bench.scheduler._swapper.num_free < 8
    bench.abort("young")
    assert bench.scheduler._swapper.num_free == 8
    assert bench.outcomes["young"].finish is FinishReason.ABORTED
    bench.run()
    bench.assert_empty()


def test_abort_of_what_is_being_loaded_leaves_no_block_behind():
    bench = Bench(num_blocks=8, num_host_slots=8)
    for n, id in enumerate(("old", "young")):
        bench.add(make_request(id, range(10 * n, 10 * n + 12), max_tokens=16))
    while True:
        plan = bench.scheduler.plan()
        if plan.kv.loads:
            break
        bench.take(bench.scheduler.commit(plan, bench.executor.run(plan)))
    bench.take(bench.scheduler.abort("young"))
    bench.take(bench.scheduler.commit(plan, bench.executor.run(plan)))
    bench.engine.check_integrity()
    bench.run()
    bench.assert_empty()


@pytest.mark.parametrize("style", ["mixed", "phased"])
def test_a_step_that_fails_half_way_stores_what_was_there_before(style):
    # The failing part has written into blocks that were stored and given out again in the same step.
    def fails(plan):
        return len(plan.rows) > 1

    executor = TinyExecutor(num_blocks=8, block_size=4, fails=fails)
    from octavo_worker.engine.styles import MixedSteps, PhasedSteps

    bench = Bench(
        num_blocks=8,
        num_host_slots=8,
        executor=executor,
        style=MixedSteps() if style == "mixed" else PhasedSteps(),
    )
    requests = [make_request(id, range(7 * n, 7 * n + 9), max_tokens=14) for n, id in enumerate("abc")]
    for request in requests:
        bench.add(request)
    bench.run()
    assert sum(outcome.num_preemptions for outcome in bench.outcomes.values()) > 0
    for request in requests:
        assert bench.outcomes[request.id].tokens == expected_output(request, 32)
    bench.assert_empty()


def test_beams_that_share_blocks_are_stored_once_and_come_back_sharing():
    bench = Bench(num_blocks=12, block_size=4, num_host_slots=20)
    bench.add(make_request("old", range(40, 52), max_tokens=30))
    bench.add(make_beams("b", prompt=range(12), width=3, max_tokens=9, length_penalty=0.0))
    stored, loaded = [], []
    while bench.engine.has_work:
        bench.step()
        kv = bench.executor.plans[-1].kv
        stored += [block for block, _ in kv.stores_out]
        loaded += [slot for slot, _ in kv.loads]
        assert len({block for block, _ in kv.stores_out}) == len(kv.stores_out)
    assert bench.outcomes["b"].num_preemptions > 0
    # Three shared blocks of the prompt and a tail or two each: fewer than three tables of four or more.
    assert 0 < len(stored) < 12 * bench.outcomes["b"].num_preemptions
    assert len(loaded) <= len(stored)
    bench.assert_empty()


def test_who_comes_back_first_may_take_what_younger_ones_kept_in_the_pool():
    bench = Bench(num_blocks=9, block_size=4, num_host_slots=20)
    beams = make_beams("beams", prompt=range(8), width=3, max_tokens=7, length_penalty=0.0)
    several = make_request("n", range(40, 48), max_tokens=6, num_choices=2, temperature=1.0)
    bench.add(beams)
    bench.step()
    bench.add(several)
    roster, planner = bench.scheduler._roster, bench.scheduler._planner
    while len(roster.running) < 5 or len(roster.running[0].tokens) < 13:
        bench.step()
    # Everybody loses its place at once. The search has 4 blocks and its next step takes 3 more; of the pool's 9 the
    # two choices keep the 2 that they share, and for one step 2 are taken from outside.
    batch = Batch(budget=64, prompt_budget=64)
    while roster.running:
        planner._preempt(batch, roster.running[-1].unit)
    kept = {block for seq in roster.known.values() for block in seq.parked if block >= 0}
    assert len(kept) == 2
    fill_with_others(bench.pool)
    bench.engine.check_integrity()
    taken = bench.pool.alloc(2)
    bench.take(bench.engine.step())
    bench.pool.release(taken)
    assert not any(seq.parked for seq in roster.known.values())
    bench.run()
    expected = expected_beams(beams, bench.limits, num_blocks=9, block_size=4)
    assert [tuple(bench.choices["beams", place].tokens) for place in range(3)] == [tokens for _, tokens in expected]
    for choice in range(2):
        assert bench.choices["n", choice].tokens == expected_output(several, 36, choice)
    bench.assert_empty()
