"""Open bytes at the end of a run, against a decoder that tries every way to go on."""

from __future__ import annotations

import itertools

from octavo_common.text.utf8 import num_open_bytes

# One byte on each side of every border in the definition of UTF-8.
BYTES = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF]
BYTES += [0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
CONTINUATIONS = [0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF]


def can_become_a_character(data: bytes) -> bool:
    for num_more in range(1, 4):
        for more in itertools.product(CONTINUATIONS, repeat=num_more):
            try:
                if len((data + bytes(more)).decode("utf-8")) == 1:
                    return True
            except UnicodeDecodeError:
                continue
    return False


def test_the_open_bytes_are_the_longest_end_that_can_still_become_a_character():
    open_ends = {
        bytes(e) for n in (1, 2, 3) for e in itertools.product(BYTES, repeat=n) if can_become_a_character(bytes(e))
    }
    for length in (0, 1, 2, 3):
        for combination in itertools.product(BYTES, repeat=length):
            data = bytes(combination)
            assert num_open_bytes(data) == max(
                (n for n in (1, 2, 3) if data[-n:] in open_ends and n <= length), default=0
            )
