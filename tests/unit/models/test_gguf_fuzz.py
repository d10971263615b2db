"""Hostile GGUF files: whatever is cut, flipped or written into one, loading ends in a typed error or in a model."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from checkpoints import make_llama, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_common.text.bundle import UnsupportedTokenizer
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.registry import load_model

UINT8, UINT32, FLOAT32, STRING, ARRAY = 0, 4, 6, 8, 9
# Numbers at which sums overflow, signs turn and memory ends.
LIMITS = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file."""
    folder = tmp_path_factory.mktemp("fuzz")
    model = make_llama(folder / "hf", hidden_size=32, intermediate_size=32, num_attention_heads=4, num_hidden_layers=1)
    return write_gguf(folder / "whole.gguf", model)


def loads_or_is_refused(path: Path) -> bool:
    """Load a file; True if it was refused, by an error that names it. Anything else is raised."""
    tracemalloc.start()
    try:
        load_model(path)
    except (InvalidModel, UnsupportedTokenizer) as error:
        assert path.name in error.message
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # What is allocated is of the order of what is in the file.
        assert peak < 32 * path.stat().st_size + 2**22
    return False


@SLOW
@given(data=st.data())
def test_a_file_that_was_cut_overwritten_or_shifted_anywhere_in_its_head(whole: Path, data: st.DataObject) -> None:
    content = bytearray(whole.read_bytes())
    head = min(tensor.offset for tensor in read_gguf(whole).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, min(head, len(content)) - 8)))
        match data.draw(st.sampled_from(["flip", "number", "cut", "insert", "delete"])):
            case "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            case "number":
                value = data.draw(st.sampled_from(LIMITS))
                size = data.draw(st.sampled_from([4, 8]))
                content[at : at + size] = struct.pack("<Q", value)[:size]
            case "cut":
                del content[data.draw(st.integers(min(head, len(content)), len(content))) :]
            case "insert":
                content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
            case "delete":
                del content[at : at + data.draw(st.integers(1, 16))]
    path = whole.with_name("damaged.gguf")
    path.write_bytes(content)
    loads_or_is_refused(path)


def text_of(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def number(kind: int, form: str, low: int, high: int) -> st.SearchStrategy[bytes]:
    near = st.sampled_from([n for n in LIMITS if low <= n <= high])
    return (near | st.integers(low, high)).map(lambda n: struct.pack("<I", kind) + struct.pack(form, n))


def values() -> st.SearchStrategy[bytes]:
    """A metadata value with its type: of any kind, arrays of arrays and counts that nothing follows among them."""
    words = st.sampled_from(["llama", "gpt2", "qwen2", "llama-bpe", "yarn", "linear", "<s>", " "])
    texts = (words | st.text(max_size=12)).map(text_of)
    floats = st.floats(width=32).map(lambda x: struct.pack("<f", x))
    arrays = st.one_of(
        st.lists(texts, max_size=5).map(lambda v: struct.pack("<IQ", STRING, len(v)) + b"".join(v)),
        st.lists(floats, max_size=5).map(lambda v: struct.pack("<IQ", FLOAT32, len(v)) + b"".join(v)),
        st.binary(max_size=9).map(lambda v: struct.pack("<IQ", UINT8, len(v)) + v),
        st.tuples(st.integers(0, 13), st.sampled_from(LIMITS)).map(lambda pair: struct.pack("<IQ", *pair)),
        st.integers(1, 2000).map(lambda depth: struct.pack("<IQ", ARRAY, 1) * depth),
    )
    return st.one_of(
        number(UINT32, "<I", 0, 2**32 - 1),
        number(5, "<i", -(2**31), 2**31 - 1),
        number(10, "<Q", 0, 2**64 - 1),
        number(11, "<q", -(2**63), 2**63 - 1),
        floats.map(lambda v: struct.pack("<I", FLOAT32) + v),
        st.floats().map(lambda x: struct.pack("<Id", 12, x)),
        st.integers(0, 255).map(lambda n: struct.pack("<IB", 7, n)),
        texts.map(lambda v: struct.pack("<I", STRING) + v),
        arrays.map(lambda v: struct.pack("<I", ARRAY) + v),
    )


def entries(path: Path) -> Iterator[tuple[str, int, int]]:
    """Where the value of each key begins and ends in a sound file's head."""
    raw, metadata = path.read_bytes(), read_gguf(path).metadata
    starts = {key: raw.index(text_of(key)) for key in metadata}
    order = sorted(starts, key=lambda key: starts[key])
    for key, following in pairwise(order):
        yield key, starts[key] + len(text_of(key)), starts[following]


@SLOW
@given(data=st.data())
def test_metadata_values_of_any_kind_and_size_in_any_place(whole: Path, data: st.DataObject) -> None:
    content, places = whole.read_bytes(), list(entries(whole))
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
    for _, start, end in sorted(chosen, key=lambda place: -place[1]):
        content = content[:start] + data.draw(values()) + content[end:]
    path = whole.with_name("edited.gguf")
    # The tensors are in the file wherever the head ends now: what comes after the head is looked at, too.
    path.write_bytes(content + bytes(2**14))
    loads_or_is_refused(path)


def with_value(whole: Path, key: str, value: bytes) -> Path:
    """The sound file with another value of one key."""
    content, (_, start, end) = whole.read_bytes(), next(place for place in entries(whole) if place[0] == key)
    path = whole.with_name("edited.gguf")
    path.write_bytes(content[:start] + value + content[end:] + bytes(2**14))
    return path


@pytest.mark.parametrize("kind", [UINT8, FLOAT32, STRING])
def test_an_array_that_is_longer_than_any_vocabulary_is_refused_though_the_file_is_as_long(
    whole: Path, kind: int
) -> None:
    path = with_value(whole, "general.name", struct.pack("<IIQ", ARRAY, kind, 2**33))
    with path.open("r+b") as stream:
        # Sparse: it has the size, and takes no room.
        stream.truncate(2**37)
    with pytest.raises(InvalidModel, match=r"announces 8589934592 of items of general\.name"):
        read_gguf(path)


@pytest.mark.parametrize("key", ["general.name", "tokenizer.ggml.model"])
def test_a_text_that_is_longer_than_any_is_refused_though_the_file_is_as_long(whole: Path, key: str) -> None:
    path = with_value(whole, key, struct.pack("<IQ", STRING, 2**36))
    with path.open("r+b") as stream:
        stream.truncate(2**37)
    with pytest.raises(InvalidModel, match=f"{key} has 68719476736 bytes"):
        read_gguf(path)


def test_a_token_that_is_longer_than_any_word_is_refused_before_its_parts_are_looked_for(whole: Path) -> None:
    tokens = read_gguf(whole).metadata["tokenizer.ggml.tokens"]
    tokens = [*tokens[:-1], "a" * 2**20]
    value = struct.pack("<IIQ", ARRAY, STRING, len(tokens)) + b"".join(map(text_of, tokens))
    with pytest.raises(InvalidModel, match="a token of 1048576 characters"):
        load_model(with_value(whole, "tokenizer.ggml.tokens", value))
