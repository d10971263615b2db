"""What is shown of the pool and of a step is what is so."""

from fakes.engines import Bench, make_beams, make_request

from octavo_worker.engine.types import SeqId


def holders_of(bench: Bench) -> dict[int, int]:
    """Block -> how many hold it, from the snapshot's tables."""
    counted: dict[int, int] = {}
    for holder in bench.engine.snapshot().holders:
        for block in holder.blocks:
            counted[block] = counted.get(block, 0) + 1
    return counted


def check(bench: Bench) -> None:
    snapshot, stats = bench.engine.snapshot(), bench.engine.stats()
    assert snapshot.step == stats.step
    assert {block: count for block, count in enumerate(snapshot.refs) if count} == holders_of(bench)
    assert sum(count > 0 for count in snapshot.refs) == stats.num_used_blocks
    assert len(snapshot.cached) == stats.num_cached_blocks
    assert len(snapshot.refs) == bench.pool.num_blocks


def test_the_snapshot_balances_after_every_step_of_a_crowd():
    bench = Bench(num_blocks=24, num_host_slots=12)
    for n in range(6):
        bench.add(make_request(f"r{n}", [1, 2, 3, 4, 5, n], max_tokens=14 + n))
    bench.add(make_request("many", range(9), num_choices=3, max_tokens=9))
    bench.add(make_beams("beams", range(7), width=3, max_tokens=6))
    num_preempted = num_swapped = 0
    while bench.engine.has_work:
        bench.step()
        check(bench)
        stats = bench.engine.stats()
        num_preempted += stats.num_preempted
        num_swapped += stats.num_swapped
        assert stats.num_swapped <= stats.num_preempted and stats.num_rows <= bench.limits.max_sequences
        if num_swapped and (snapshot := bench.engine.snapshot()).num_free_host_slots < snapshot.num_host_slots:
            swapped = [holder for holder in snapshot.holders if holder.phase == "swapped"]
            assert sum(h.num_host_blocks for h in swapped) >= snapshot.num_host_slots - snapshot.num_free_host_slots > 0
    assert num_preempted >= num_swapped > 0
    assert bench.engine.snapshot().holders == ()
    bench.assert_empty()


def test_choices_share_their_prompt_and_are_told_apart():
    bench = Bench(block_size=4)
    bench.add(make_request("a", range(8), num_choices=2, max_tokens=6))
    bench.add(make_request("b", (9,), max_tokens=6))
    for _ in range(3):
        bench.step()
    snapshot = bench.engine.snapshot()
    found = {holder.id: holder for holder in snapshot.holders}
    first, second = found[SeqId("a", 0)], found[SeqId("a", 1)]
    assert first.blocks[:2] == second.blocks[:2] and first.blocks[2:] != second.blocks[2:]
    assert [snapshot.refs[block] for block in first.blocks] == [2, 2, 1]
    assert (first.phase, first.num_prompt_tokens, first.num_tokens, first.num_computed) == ("running", 8, 11, 10)
    assert not set(found[SeqId("b", 0)].blocks) & {*first.blocks, *second.blocks}


def test_who_waits_holds_nothing():
    bench = Bench(max_sequences=1)
    bench.add(make_request("a"))
    bench.add(make_request("b"))
    bench.step()
    a, b = bench.engine.snapshot().holders
    assert (a.phase, b.phase, b.blocks) == ("running", "waiting", ())


def test_prefix_hits_of_a_step_are_those_that_its_requests_report():
    bench = Bench(num_blocks=256, block_size=4)
    asked = found = reported = 0
    for n, length in enumerate((13, 13, 12, 25, 3)):
        bench.add(make_request(f"r{n}", range(length), max_tokens=3))
        while bench.engine.has_work:
            bench.step()
            asked += bench.engine.stats().num_asked_tokens
            found += bench.engine.stats().num_found_tokens
        reported += bench.outcomes[f"r{n}"].num_cached
    assert found == reported == 12 + 8 + 12
    # Whole blocks short of the last token.
    assert asked == 12 + 12 + 8 + 24 + 0


def test_a_request_that_takes_no_hits_asks_for_none():
    bench = Bench(block_size=4)
    for name in "ab":
        bench.add(make_request(name, range(12), max_tokens=1, num_prompt_logprobs=0))
        bench.step()
        assert (bench.engine.stats().num_asked_tokens, bench.engine.stats().num_found_tokens) == (0, 0)
        bench.run()


def test_a_snapshot_does_not_change_when_the_engine_goes_on():
    bench = Bench()
    bench.add(make_request("a", range(10), max_tokens=20))
    bench.step()
    before = bench.engine.snapshot()
    copy = (before.refs, before.cached, before.holders)
    bench.run()
    assert (before.refs, before.cached, before.holders) == copy
