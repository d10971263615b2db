"""What a graph is fed: masks by brute force, the cache, which graph takes what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_device.errors import DoesNotFit
from octavo_device.feeds import Decoding, attention_mask, rope_tables
from octavo_device.spec import GraphSpec, RopeSpec, read_spec, write_spec


def make_spec(context_length=24, ars=(8, 3, 1), window=None):
    return GraphSpec(
        context_length=context_length,
        ars=ars,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        hidden_size=16,
        vocab_size=50,
        rope=RopeSpec(inverse_frequencies=(1.0, 0.25), attention_factor=1.5, kind="yarn"),
        window=window,
    )


class Recorder:
    """Stands for a graph: a token's key and value are its own number, so that what the cache holds can be read."""

    def __init__(self, spec):
        self.spec, self.calls = spec, []

    def __call__(self, ar, feeds):
        for tensor in self.spec.inputs(ar):
            assert feeds[tensor.name].shape == tensor.shape
            assert feeds[tensor.name].dtype == tensor.dtype
        self.calls.append((ar, feeds))
        numbers = feeds["input_ids"][0].astype(np.float32)
        outputs = {"logits": np.tile(numbers[None, :, None], (1, 1, self.spec.vocab_size))}
        for layer in range(self.spec.num_layers):
            outputs[f"key_{layer}"] = np.tile(numbers + 100 * layer, (2, 1, 4, 1))
            outputs[f"value_{layer}"] = np.tile(numbers[:, None] + 100 * layer, (2, 1, 1, 4))
        return outputs


@settings(max_examples=60, deadline=None)
@given(
    ar=st.sampled_from([1, 3, 8]),
    num_past=st.integers(0, 16),
    window=st.one_of(st.none(), st.integers(1, 30)),
)
def test_a_token_sees_what_it_may_and_nothing_else(ar, num_past, window):
    spec = make_spec(window=window)
    mask = attention_mask(spec, ar, num_past)
    past = spec.past_length(ar)
    for row in range(ar):
        position = num_past + row
        for column in range(spec.context_length):
            where = column if column < past else num_past + column - past
            holds = column < num_past if column < past else True
            seen = holds and where <= position and (window is None or position - where < window)
            assert mask[row, column] == (0 if seen else -100), (row, column)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_the_cache_holds_every_token_at_its_place_whatever_the_calls(lengths, seed):
    spec = make_spec()
    lengths = [length for index, length in enumerate(lengths) if sum(lengths[: index + 1]) <= spec.context_length]
    tokens = np.random.default_rng(seed).integers(1, 50, sum(lengths)).tolist()
    run = Recorder(spec)
    decoding, start = Decoding(spec, run), 0
    for length in lengths:
        logits = decoding.logits(tokens[start : start + length])
        assert logits[:, 0].tolist() == tokens[start : start + length]
        start += length
    assert decoding.cache.num_tokens == len(tokens)
    past = decoding.cache.past(1)
    held = min(len(tokens), spec.context_length - 1)
    for layer in range(2):
        expected = [token + 100 * layer for token in tokens[:held]]
        assert past[f"past_key_{layer}"][1, 0, 3, :held].tolist() == expected
        assert past[f"past_value_{layer}"][0, 0, :held, 2].tolist() == expected
        assert not past[f"past_key_{layer}"][..., held:].any()


def test_calls_take_the_largest_graph_that_has_room_and_the_smallest_that_takes_the_rest():
    spec = make_spec()
    calls = list(Decoding(spec, Recorder(spec)).calls(list(range(1, 25))))
    # 24 tokens: 8, 8, then only 8 columns are left, which the largest graph fills.
    assert [(call.ar, call.start, call.num_new) for call in calls] == [(8, 0, 8), (8, 8, 8), (8, 16, 8)]
    calls = list(Decoding(spec, Recorder(spec)).calls(list(range(1, 12))))
    assert [(call.ar, call.start, call.num_new) for call in calls] == [(8, 0, 8), (3, 8, 3)]
    decoding = Decoding(spec, Recorder(spec))
    decoding.logits(list(range(1, 19)))
    # A past of 18 leaves the graphs of 3 and of 1.
    calls = list(decoding.calls(list(range(1, 7))))
    assert [(call.ar, call.start, call.num_new) for call in calls] == [(3, 18, 3), (3, 21, 3)]


def test_positions_go_on_over_calls():
    spec = make_spec()
    run = Recorder(spec)
    Decoding(spec, run).logits(list(range(1, 14)), ars=(3,))
    for index, (_, feeds) in enumerate(run.calls):
        cos, sin = rope_tables(spec.rope, np.arange(3 * index, 3 * index + 3))
        np.testing.assert_array_equal(feeds["cos"][0, 0], cos)
        np.testing.assert_array_equal(feeds["sin"][0, 0], sin)


def test_tables_are_cosines_and_sines_of_position_times_frequency():
    rope = make_spec().rope
    cos, sin = rope_tables(rope, np.array([0, 1, 7]))
    angles = np.outer([0, 1, 7], rope.inverse_frequencies)
    np.testing.assert_allclose(cos, 1.5 * np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin, 1.5 * np.sin(angles), atol=1e-6)
    assert cos.dtype == sin.dtype == np.float32


def test_a_sequence_longer_than_the_context_is_refused():
    spec = make_spec()
    with pytest.raises(DoesNotFit, match="25 tokens"):
        Decoding(spec, Recorder(spec)).logits([1] * 25)
    decoding = Decoding(spec, Recorder(spec))
    decoding.logits([1] * 20)
    with pytest.raises(DoesNotFit, match="no graph for 8"):
        decoding.logits([1], ars=(8,))
    with pytest.raises(DoesNotFit, match="token 50"):
        decoding.logits([50])


def test_a_spec_comes_back_from_its_file(tmp_path):
    spec = make_spec(window=7)
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec


def test_a_cleared_cache_is_a_new_one():
    spec = make_spec()
    decoding = Decoding(spec, Recorder(spec))
    decoding.logits([1, 2, 3])
    decoding.cache.clear()
    assert decoding.cache.num_tokens == 0
    assert not any(array.any() for array in decoding.cache.past(1).values())
