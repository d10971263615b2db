import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from octavo_worker.engine.blocks import ROOT, BlockKey, BlockPool, OutOfBlocks, chain_hash, root_hash


def keys_of(*contents, start=b""):
    keys, parent = [], start
    for tokens in contents:
        parent = chain_hash(parent, tokens)
        keys.append(BlockKey(parent, tuple(tokens)))
    return keys


def seal_all(pool, blocks, keys):
    parent, seals = ROOT, []
    for block, key in zip(blocks, keys, strict=True):
        parent = pool.seal(block, key, parent)
        seals.append(parent)
    return seals


def test_alloc_beyond_the_pool_is_a_bug_that_changes_nothing():
    pool = BlockPool(3, 4)
    held = pool.alloc(2)
    assert pool.can_alloc(1) and not pool.can_alloc(2)
    with pytest.raises(OutOfBlocks):
        pool.alloc(2)
    pool.check_integrity([held])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_a_pool_without_room_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(num_blocks, block_size)


def test_released_content_is_found_again_and_counts_as_cached():
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2], [3, 4])
    blocks = pool.alloc(2)
    seal_all(pool, blocks, keys)
    pool.release(reversed(blocks))
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 2, 0)
    assert [seal.block for seal in pool.match(keys)] == blocks
    assert (pool.num_cached, pool.num_used) == (0, 2)
    pool.check_integrity([blocks])


def test_tails_are_evicted_before_beginnings_and_blocks_without_content_before_both():
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2], [3, 4])
    blocks = pool.alloc(3)
    seal_all(pool, blocks[:2], keys)
    pool.release(reversed(blocks))
    assert set(pool.alloc(2)).isdisjoint(blocks[:2])
    assert pool.alloc(1) == [blocks[1]]
    assert [seal.block for seal in pool.match(keys)] == blocks[:1]


def test_a_second_block_of_known_content_stays_its_own_and_names_the_canonical_one():
    pool = BlockPool(6, 2)
    keys = keys_of([1, 2], [3, 4], [5, 6])
    first, second = pool.alloc(2), pool.alloc(3)
    seals = seal_all(pool, first, keys[:2])
    twins = seal_all(pool, second[:2], keys[:2])
    assert twins == seals
    # The child of the twin is found through the canonical parent.
    child = pool.seal(second[2], keys[2], twins[-1])
    assert child.block == second[2]
    assert [seal.block for seal in pool.match(keys)] == [*first, second[2]]
    pool.release(reversed(second))
    # The twins hold nothing that anyone could find.
    assert pool.num_free == 2 + 1


def test_equal_hashes_of_different_content_cost_only_a_miss():
    pool = BlockPool(8, 2)
    same = b"collision"
    a = [BlockKey(same, (1, 2)), BlockKey(same, (9, 9))]
    b = [BlockKey(same, (3, 4)), BlockKey(same, (9, 9))]
    blocks_a, blocks_b = pool.alloc(2), pool.alloc(1)
    seal_all(pool, blocks_a, a)
    seal_all(pool, blocks_b, b[:1])
    # The second block of `a` has the hash and the tokens that `b` asks for, but another parent.
    assert [seal.block for seal in pool.match(b)] == blocks_b


def test_a_reused_block_does_not_inherit_the_children_of_its_earlier_content():
    pool = BlockPool(2, 2)
    same = b"collision"
    parent, child = pool.alloc(2)
    seal_all(pool, [parent, child], [BlockKey(same, (1, 2)), BlockKey(same, (9, 9))])
    # The parent goes first here, which a scheduler that releases in reverse does not do.
    pool.release([parent])
    assert pool.alloc(1) == [parent]
    pool.seal(parent, BlockKey(same, (3, 4)), ROOT)
    assert [seal.block for seal in pool.match([BlockKey(same, (3, 4)), BlockKey(same, (9, 9))])] == [parent]


def test_a_block_that_outlives_its_parent_is_found_again_after_a_new_one_with_all_that_follows():
    pool = BlockPool(6, 2)
    keys = keys_of([1, 2], [3, 4], [5, 6])
    blocks = pool.alloc(3)
    seals = seal_all(pool, blocks, keys)
    # The first block's content goes and is written again into another one; the others were held all the time.
    pool.release([blocks[0]])
    taken = pool.alloc(4)
    parent = pool.seal(taken[0], keys[0], ROOT)
    assert pool.seal(blocks[1], keys[1], parent) == seals[1]
    assert pool.match(keys) == [parent, *seals[1:]]
    pool.check_integrity([taken, blocks[1:], [taken[0], *blocks[1:]]])


def test_a_block_is_retaken_only_in_the_life_that_is_meant():
    pool = BlockPool(2, 2)
    key = keys_of([1, 2])[0]
    (block,) = pool.alloc(1)
    seal = pool.seal(block, key, ROOT)
    pool.release([block])
    assert pool.retake(seal) and pool.num_refs(block) == 1
    pool.release([block])
    taken = pool.alloc(2)
    assert not pool.retake(seal)
    pool.seal(block, key, ROOT)
    assert not pool.retake(seal)
    pool.check_integrity([taken])


def test_a_forked_block_goes_back_with_its_last_reference():
    pool = BlockPool(1, 2)
    (block,) = pool.alloc(1)
    pool.fork([block])
    assert pool.num_refs(block) == 2
    pool.release([block])
    assert not pool.can_alloc(1)
    pool.release([block])
    assert pool.can_alloc(1)


@pytest.mark.parametrize("misuse", ["release", "fork", "seal"])
def test_using_a_block_that_nobody_holds_is_a_bug(misuse):
    pool = BlockPool(1, 2)
    with pytest.raises(AssertionError):
        {
            "release": lambda: pool.release([0]),
            "fork": lambda: pool.fork([0]),
            "seal": lambda: pool.seal(0, BlockKey(b"", (1, 2)), ROOT),
        }[misuse]()


def test_the_root_hash_tells_extras_apart():
    lists = [(), (("a", "b"),), (("ab", ""),), (("", "ab"),), (("a", ""), ("b", "")), (("a", "b"), ("", ""))]
    assert len({root_hash(extras) for extras in lists}) == len(lists)


class PoolMachine(RuleBasedStateMachine):
    """Random tables over a weak hash: what is found must be exactly the content that was asked for."""

    tables = Bundle("tables")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(8, 1)
        self.content: dict[int, list[int]] = {}  # block -> all tokens up to its end
        self.held: list[list[int]] = []

    def keys(self, tokens):
        return [BlockKey(bytes([token % 2]), (token,)) for token in tokens]

    @rule(target=tables, tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def admit(self, tokens):
        seals = self.pool.match(self.keys(tokens))
        for index, seal in enumerate(seals):
            assert self.content[seal.block] == tokens[: index + 1]
        missing = len(tokens) - len(seals)
        table = [seal.block for seal in seals]
        if not self.pool.can_alloc(missing):
            self.pool.release(reversed(table))
            return []
        table += self.pool.alloc(missing)
        parent = seals[-1] if seals else ROOT
        for index in range(len(seals), len(tokens)):
            self.content[table[index]] = tokens[: index + 1]
            parent = self.pool.seal(table[index], self.keys(tokens)[index], parent)
            assert self.content[parent.block] == tokens[: index + 1]
        self.held.append(table)
        return table

    @rule(table=consumes(tables), backwards=st.booleans())
    def leave(self, table, backwards):
        if table:
            self.pool.release(reversed(table) if backwards else table)
            self.held.remove(table)

    @invariant()
    def books_balance(self):
        self.pool.check_integrity(self.held)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
