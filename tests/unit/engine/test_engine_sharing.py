"""What sequences share of the cache, and what they never may."""

from fakes.engines import Bench, make_request


def test_a_hit_never_covers_the_last_token_of_the_prompt():
    bench = Bench(block_size=4)
    for id, num_tokens in (("a", 12), ("b", 12), ("c", 13)):
        bench.add(make_request(id, range(num_tokens), max_tokens=1))
        bench.run()
    assert [bench.outcomes[id].num_cached for id in "abc"] == [0, 8, 12]


def test_prompts_that_are_stretched_share_blocks_only_with_prompts_of_their_length():
    bench = Bench(stretches_beyond=8)
    for id, length in (("a", 8), ("b", 7), ("c", 12), ("d", 13), ("e", 12)):
        bench.add(make_request(id, range(length)))
        bench.run()
    assert [bench.outcomes[id].num_cached for id in "abcde"] == [0, 4, 0, 0, 8]


def test_equal_prompts_of_different_salts_share_nothing():
    bench = Bench()
    for id, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        bench.add(make_request(id, range(12), salt=salt))
        bench.run()
    assert [bench.outcomes[id].num_cached for id in "abc"] == [0, 0, 8]


def test_two_equal_prompts_in_one_step_are_both_computed_and_a_third_finds_the_longest():
    bench = Bench()
    for id in "ab":
        bench.add(make_request(id, range(8), max_tokens=1 if id == "a" else 9))
    bench.run()
    assert [bench.outcomes[id].num_cached for id in "ab"] == [0, 0]
    longer = [*range(8), *bench.outcomes["b"].tokens]
    bench.add(make_request("c", longer, max_tokens=1))
    bench.run()
    # The answer of b is found through the blocks of a, which were sealed first.
    assert bench.outcomes["c"].num_cached == 16


def test_nothing_is_sealed_beyond_committed_tokens():
    bench = Bench(block_size=4)
    bench.add(make_request("a", range(4), max_tokens=4))
    bench.run()
    # 8 tokens are known, 7 have KV: the second block never became full.
    assert bench.engine.stats().num_cached_blocks == 1


def test_of_a_cached_sequence_the_end_is_evicted_first():
    bench = Bench(num_blocks=5, block_size=4)
    bench.add(make_request("a", range(16), max_tokens=1))
    bench.run()
    bench.add(make_request("b", range(50, 62), max_tokens=1))
    bench.run()
    bench.add(make_request("c", range(16), max_tokens=1))
    bench.run()
    assert bench.outcomes["c"].num_cached == 8


def test_the_hash_of_a_block_depends_on_all_that_came_before_it():
    def keys(prompt):
        bench = Bench()
        bench.add(make_request("a", prompt))
        (seq,) = bench.queue
        return [seq.key(index, 4).hash for index in range(len(prompt) // 4)]

    same_end = keys([1, 2, 3, 4, 9, 9, 9, 9])[1], keys([4, 3, 2, 1, 9, 9, 9, 9])[1]
    assert len(set(same_end)) == 2
    assert keys([9] * 8)[0] != keys([9] * 8)[1]
