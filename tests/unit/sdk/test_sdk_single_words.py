"""One word where several may stand is a word, not its letters."""

from __future__ import annotations

from octavo.request import generation
from octavo.v1 import gateway_pb2


def test_a_string_is_one_bad_word_one_choice_and_one_stop() -> None:
    message: gateway_pb2.Generation = generation("hello", bad_words="Paris", choice="yes", stop="end")
    assert list(message.sampling.bad_words) == ["Paris"]
    assert list(message.sampling.stop) == ["end"]
    assert list(message.structured_output.choice.texts) == ["yes"]
    several = generation("hello", bad_words=["a", "b"], choice=["yes", "no"])
    assert list(several.sampling.bad_words) == ["a", "b"]
    assert list(several.structured_output.choice.texts) == ["yes", "no"]
