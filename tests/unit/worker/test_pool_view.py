"""The picture of a pool: its cells add up, whatever the pool's size."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.engine.snapshot import Holder, Snapshot
from octavo_worker.engine.types import SeqId
from octavo_worker.poolview import view

PHASES = ("running", "awaiting_kv", "swapped", "waiting")


@st.composite
def snapshots(draw) -> Snapshot:
    num_blocks, size = draw(st.integers(1, 60)), draw(st.sampled_from([1, 4, 16]))
    free = list(range(num_blocks))
    cached = tuple(free.pop(draw(st.integers(0, len(free) - 1))) for _ in range(draw(st.integers(0, num_blocks // 3))))
    holders, refs = [], [0] * num_blocks
    for n in range(draw(st.integers(0, 5))):
        blocks = tuple(draw(st.lists(st.sampled_from(free), unique=True, max_size=12))) if free else ()
        for block in blocks:
            refs[block] += 1
        holders.append(
            Holder(
                id=SeqId(f"r{n}", 0),
                phase=draw(st.sampled_from(PHASES)),
                num_tokens=draw(st.integers(1, 12 * size)),
                num_prompt_tokens=1,
                num_computed=0,
                blocks=blocks,
                num_host_blocks=0,
            )
        )
    return Snapshot(
        step=1,
        block_size=size,
        refs=tuple(refs),
        cached=cached,
        holders=tuple(holders),
        num_host_slots=0,
        num_free_host_slots=0,
    )


@given(snapshot=snapshots(), max_cells=st.integers(1, 70), max_sequences=st.integers(1, 6))
def test_cells_add_up_to_the_pool_and_stay_few(snapshot, max_cells, max_sequences):
    seen = view(snapshot, max_cells=max_cells, max_sequences=max_sequences)
    each, refs = seen.blocks_per_cell, snapshot.refs
    assert len(seen.cells) <= max_cells
    assert (len(seen.cells) - 1) * each < len(refs) <= len(seen.cells) * each
    assert each == 1 or len(refs) > max_cells
    for number, cell in enumerate(seen.cells):
        inside = range(number * each, min(len(refs), (number + 1) * each))
        assert cell.num_used == sum(refs[b] > 0 for b in inside)
        assert cell.num_shared == sum(refs[b] > 1 for b in inside)
        assert cell.num_cached == len(set(inside) & set(snapshot.cached))
        held = Counter(n for n, s in enumerate(seen.sequences) for b in s.holder.blocks if b in inside)
        assert cell.owner == -1 if not held else held[cell.owner] == max(held.values())
    assert seen.num_used == sum(cell.num_used for cell in seen.cells)
    assert seen.num_cached == sum(cell.num_cached for cell in seen.cells)
    assert seen.num_shared == sum(cell.num_shared for cell in seen.cells)


@given(snapshot=snapshots(), max_sequences=st.integers(1, 6))
def test_who_runs_is_shown_first_and_who_is_left_out_is_counted(snapshot, max_sequences):
    seen = view(snapshot, max_cells=1000, max_sequences=max_sequences)
    assert len(seen.sequences) + seen.num_sequences_left_out == len(snapshot.holders)
    phases = [PHASES.index(s.holder.phase) for s in seen.sequences]
    assert phases == sorted(phases)
    assert all(s.blocks == s.holder.blocks for s in seen.sequences)
    assert not any(s.blocks for s in view(snapshot, max_cells=1).sequences) or len(snapshot.refs) == 1


def test_tables_that_share_everything_are_not_listed_without_end():
    blocks = tuple(range(4000))
    holders = tuple(
        Holder(
            id=SeqId(f"r{n:03}", 0),
            phase="running",
            num_tokens=64000,
            num_prompt_tokens=64000,
            num_computed=0,
            blocks=blocks,
            num_host_blocks=0,
        )
        for n in range(20)
    )
    snapshot = Snapshot(
        step=1,
        block_size=16,
        refs=(20,) * 4000,
        cached=(),
        holders=holders,
        num_host_slots=0,
        num_free_host_slots=0,
    )
    seen = view(snapshot)
    assert not any(s.blocks for s in seen.sequences)
    assert [s.num_shared_blocks for s in seen.sequences] == [4000] * 20
    assert {cell.owner for cell in seen.cells} == {0}


@given(snapshot=snapshots())
def test_unused_slots_are_those_that_nobody_has_a_token_for(snapshot):
    size = snapshot.block_size
    full = {
        (block, slot)
        for holder in snapshot.holders
        for index, block in enumerate(holder.blocks)
        for slot in range(size)
        if index * size + slot < holder.num_tokens
    }
    used = sum(count > 0 for count in snapshot.refs)
    assert view(snapshot).num_unused_slots == used * size - len(full)
