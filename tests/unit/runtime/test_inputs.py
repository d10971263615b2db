"""Plans become tensors: positions, slots, tables and wanted rows, against what the plan says; repeating is harmless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_worker.engine.plan import Fork, RowPlan
from octavo_worker.engine.types import SamplingParams, SeqId
from octavo_worker.runtime.inputs import InputBuilder

PARAMS = SamplingParams(max_tokens=9, temperature=0.5, seed=3)


def row(name, start, tokens, *, first=0, blocks=(), wants=None, params=None):
    last = start + len(tokens)
    return RowPlan(
        id=SeqId(name, 0),
        start=start,
        tokens=tuple(tokens),
        first_block=first,
        new_blocks=tuple(blocks),
        wants=range(last - 1, last) if wants is None else wants,
        params=params,
        num_prompt_tokens=start + len(tokens),
    )


def builder():
    return InputBuilder(block_size=4, max_blocks=8)


def test_tokens_get_their_positions_and_slots_through_the_table():
    rows = [
        row("a", 3, [1, 2, 3], blocks=[7, 5], params=PARAMS),
        row("b", 0, [9], blocks=[2], params=PARAMS, wants=range(0)),
    ]
    inputs = builder().build(rows)
    assert inputs.tokens_T.tolist() == [1, 2, 3, 9]
    assert inputs.positions_T.tolist() == [3, 4, 5, 0]
    assert inputs.attention.slots_T.tolist() == [7 * 4 + 3, 5 * 4, 5 * 4 + 1, 2 * 4]
    assert inputs.attention.tables_RB[0].tolist() == [7, 5]
    assert inputs.attention.tables_RB[1, 0] == 2
    assert inputs.wanted_S.tolist() == [2]
    assert inputs.wanted_ids == (SeqId("a", 0),)
    # The token chosen from position 5 has position 6.
    assert inputs.wanted_rows[0].position == 6
    assert inputs.wanted_rows[0].params is PARAMS


def test_later_rows_bring_only_what_is_new():
    inputs = builder()
    inputs.build([row("a", 0, [1, 2, 3, 4], blocks=[7], params=PARAMS)])
    inputs.build([row("a", 4, [5], first=1, blocks=[3])])
    last = inputs.build([row("a", 5, [6], first=2)])
    assert last.attention.tables_RB.tolist() == [[7, 3]]
    assert last.attention.slots_T.tolist() == [3 * 4 + 1]
    assert last.wanted_rows[0].params is PARAMS


def test_a_repeated_row_gives_the_same_inputs():
    inputs = builder()
    rows = [row("a", 0, [1, 2, 3, 4, 5], blocks=[7, 1], params=PARAMS), row("b", 0, [8], blocks=[2], params=PARAMS)]
    both = inputs.build(rows)
    again = [inputs.build(rows[:1]), inputs.build(rows[1:])]
    slots = np.concatenate([part.attention.slots_T for part in again])
    assert slots.tolist() == both.attention.slots_T.tolist()
    assert inputs.num_known == 2


def test_a_forgotten_sequence_starts_afresh_and_its_place_is_used_again():
    inputs = builder()
    for turn in range(100):
        inputs.build([row(f"r{turn}", 0, [1], blocks=[turn % 5], params=PARAMS)])
        inputs.renew((), [SeqId(f"r{turn}", 0), SeqId("unknown", 0)])
    assert inputs.num_known == 0
    assert len(inputs._tables) == 8


def test_more_sequences_than_places_grow_the_tables_and_keep_their_content():
    inputs = builder()
    for index in range(30):
        inputs.build([row(f"r{index}", 0, [1], blocks=[index], params=PARAMS)])
    for index in range(30):
        found = inputs.build([row(f"r{index}", 1, [1], first=1)])
        assert found.attention.slots_T.tolist() == [index * 4 + 1]


def test_blocks_from_the_prefix_cache_are_not_fresh():
    rows = [row("a", 8, [1, 2], blocks=[4, 5, 6], params=PARAMS), row("b", 6, [1, 2, 3], first=2, blocks=[7])]
    assert builder().fresh_blocks(rows) == [6, 7]


def penalised(inputs, number):
    """Which logits a row's rules change, and how."""
    logits = np.ones(20, np.float32)
    wanted = inputs.wanted_rows[number]
    assert wanted.context.process(logits, wanted.position) is None
    return {token: float(value) for token, value in enumerate(logits) if value != 1}


def test_penalties_see_history_and_fed_tokens_once_however_often_a_row_is_repeated_or_told_again():
    params = SamplingParams(max_tokens=9, frequency_penalty=0.25)
    inputs = builder()
    first = replace(row("a", 3, [11, 12], blocks=[1, 2], params=params), history=(7, 9, 9), num_prompt_tokens=2)
    then = replace(row("a", 5, [12], first=2), num_prompt_tokens=2)
    for _ in range(2):
        assert penalised(inputs.build([first]), 0) == {9: 0.75, 11: 0.75, 12: 0.75}
    for _ in range(2):
        assert penalised(inputs.build([then]), 0) == {9: 0.75, 11: 0.75, 12: 0.5}
    assert penalised(inputs.build([first]), 0) == {9: 0.75, 11: 0.75, 12: 0.75}
    inputs.renew((), [SeqId("a", 0)])
    assert not inputs._contexts


def test_a_fork_goes_on_from_what_its_origin_knew_though_that_is_gone_and_its_name_given_away():
    params = SamplingParams(max_tokens=9, frequency_penalty=0.25)
    inputs = builder()
    origin, twin = SeqId("a", 0), SeqId("a", 1)
    told = replace(row("a", 0, [7, 9, 11, 11, 12], blocks=[1, 2], params=params), num_prompt_tokens=2)
    other = replace(told, id=twin, tokens=(3, 4), wants=range(1, 2))
    inputs.build([told, other])
    inputs.renew([Fork(origin, twin), Fork(origin, SeqId("a", 2))], [twin, origin])
    assert inputs.num_known == 2
    then = replace(row("a", 5, [13], first=2), num_prompt_tokens=2)
    found = inputs.build([replace(then, id=twin), replace(then, id=SeqId("a", 2), tokens=(11,))])
    assert found.attention.tables_RB.tolist() == [[1, 2], [1, 2]]
    assert penalised(found, 0) == {11: 0.5, 12: 0.75, 13: 0.75}
    assert penalised(found, 1) == {11: 0.25, 12: 0.75}


def test_rows_without_rules_have_no_context_and_draws_are_named_by_the_plan():
    inputs = builder()
    rows = [
        replace(row("a", 0, [1], blocks=[1], params=PARAMS), draws=(0, 1, 2)),
        row("b", 0, [1], blocks=[2], params=PARAMS),
        replace(row("c", 0, [1], blocks=[3], params=PARAMS), num_candidates=4),
    ]
    wanted = inputs.build(rows).wanted_rows
    assert [found.choices for found in wanted] == [(0, 1, 2), (0,), ()]
    assert [found.num_candidates for found in wanted] == [0, 0, 4]
    assert all(found.context is None for found in wanted)


def test_known_tokens_are_scored_from_the_first_wanted_positions_and_the_last_is_drawn_from():
    asks = replace(PARAMS, num_prompt_logprobs=3)
    inner = replace(row("a", 2, [5, 6, 7], blocks=[1, 2], params=asks, wants=range(2, 5)), scored=(6, 7, 8))
    last = replace(row("b", 0, [1, 2, 3, 4], blocks=[3], params=asks, wants=range(4)), scored=(2, 3, 4), draws=(0,))
    # Output of an earlier attempt is neither scored nor drawn again.
    again = replace(row("c", 0, [1, 2, 3, 4], blocks=[4], params=asks, wants=range(4)), scored=(2,), draws=(0,))
    inputs = builder().build([inner, last, again])
    assert inputs.scored_S.tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert [seq_id.request for seq_id in inputs.scored_ids] == ["a"] * 3 + ["b"] * 3 + ["c"]
    assert [asked.token for asked in inputs.scored_tokens] == [6, 7, 8, 2, 3, 4, 2]
    assert {asked.num_top for asked in inputs.scored_tokens} == {3}
    assert inputs.wanted_S.tolist() == [6, 10]
    assert [seq_id.request for seq_id in inputs.wanted_ids] == ["b", "c"]
    assert [wanted.position for wanted in inputs.wanted_rows] == [4, 4]
