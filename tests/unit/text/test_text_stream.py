"""The answer's stream against a brute-force reading of the rules over full decodes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_common.text.stream import TextStream

KINDS = ["byte_level", "byte_fallback", "metaspace"]
FIXTURE_OK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Endings that between them open, continue, finish and break every kind of UTF-8 sequence.
ENDINGS = ["", "a", "\xff", *(byte * n for byte in "\x80\xbf\x90\xa0" for n in (1, 2, 3))]


def endings(tokenizer) -> list[list[int]]:
    form = tokenizer.pieces.form
    alphabet = {b: i for i in range(tokenizer.vocab_size) for b in [_single_byte(tokenizer.pieces[i])] if b is not None}
    if form.byte_fallback:
        alphabet |= {ord("a"): tokenizer.token_id("a")}
    return [[alphabet[ord(c)] for c in text] for text in ENDINGS]


def _single_byte(piece) -> int | None:
    if isinstance(piece, int):
        return piece
    data = piece.encode() if isinstance(piece, str) else piece or b""
    return data[0] if len(data) == 1 else None


def common_prefix(texts: list[str]) -> str:
    shortest = min(texts, key=len)
    num_equal = next((n for n, char in enumerate(shortest) if any(t[n] != char for t in texts)), len(shortest))
    return shortest[:num_equal]


class Oracle:
    """Looks at the full text only, and decides again from nothing for every number of tokens."""

    def __init__(self, tokenizer, ids: list[int], stop: list[str]) -> None:
        self.tokenizer, self.ids, self.stop = tokenizer, ids, [s for s in stop if s]
        self.endings = endings(tokenizer)

    def certain_text(self, num_tokens: int) -> str:
        """What every continuation of the tokens begins with."""
        return common_prefix([self.tokenizer.decode(self.ids[:num_tokens] + e) for e in self.endings])

    def match(self, text: str) -> tuple[int, int] | None:
        for end in range(len(text) + 1):
            starts = [end - len(s) for s in self.stop if text[:end].endswith(s)]
            if starts:
                return min(starts), end
        return None

    def released(self, num_tokens: int) -> tuple[int, str]:
        """Tokens that may have left after so many, when no stop string is complete."""
        text = self.certain_text(num_tokens)
        beginnings = [s[:n] for s in self.stop for n in range(1, len(s))]
        safe = min([len(text)] + [len(text) - len(b) for b in beginnings if text.endswith(b)])
        best = 0
        for n in range(num_tokens + 1):
            alone = self.tokenizer.decode(self.ids[:n])
            if text.startswith(alone) and len(alone) <= safe:
                best = n
        return best, self.tokenizer.decode(self.ids[:best])


def answers(tokenizer) -> st.SearchStrategy[list[int]]:
    texts = st.lists(
        st.sampled_from(["STOP", "ST", "O", "P", " STOP", "stop", "é", "你", "🙂", "S", " the", "</s>"]), max_size=8
    )
    real = texts.map(lambda parts: tokenizer.encode("".join(parts), add_special=False))
    # A byte token of a space at the start is cut away or becomes U+FFFD: to the oracle nothing looks certain there.
    space = tokenizer.token_id("<0x20>")
    nonsense = st.lists(st.integers(0, tokenizer.vocab_size + 1).filter(lambda i: i != space), max_size=6)
    return st.lists(st.one_of(real, real.map(lambda ids: ids[1:]), nonsense), max_size=3).map(
        lambda lists: [i for ids in lists for i in ids][:24]
    )


STOPS = st.lists(
    st.sampled_from(["STOP", "TOP", "OP ", "你é", "🙂S", "S", "STOPSTOP", "the", "\ufffd\ufffd", "ééx"]), max_size=3
)


@pytest.mark.parametrize("kind", KINDS)
@FIXTURE_OK
@given(data=st.data())
def test_a_stream_is_what_the_full_text_says_however_it_is_cut(kind, data, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    ids, stop = data.draw(answers(tokenizer)), data.draw(STOPS)
    oracle = Oracle(tokenizer, ids, stop)
    stream, start = TextStream(tokenizer, stop), 0
    while start < len(ids) and not stream.ended:
        size = data.draw(st.integers(1, 5))
        released = stream.push(ids[start : start + size])
        start = min(start + size, len(ids))
        assert stream.ended == released.stopped
        found = oracle.match(oracle.certain_text(start))
        assert released.stopped == (found is not None)
        if found is None:
            assert (stream.num_released, stream.text) == oracle.released(start)
    if not stream.ended:
        stream.finish()
    whole = tokenizer.decode(ids)
    found = oracle.match(whole)
    if found is None:
        assert (stream.num_released, stream.text) == (len(ids), whole)
        return
    begins, _ = found
    assert stream.text == whole[:begins]
    check_kept(tokenizer, ids, stream.num_released, whole, begins)


def check_kept(tokenizer, ids: list[int], num_kept: int, whole: str, begins: int) -> None:
    """The last token kept is the one in which character number `begins` begins."""
    before, upto = (common_prefix([whole, tokenizer.decode(ids[:n])]) for n in (num_kept - 1, num_kept))
    assert 1 <= num_kept <= len(ids)
    # Not all of the text before the stop string, or exactly it, is in the tokens before the last one.
    assert len(before) <= begins
    # With the last token the stop string has begun: a part of it is there, or bytes of its first character are.
    assert len(upto) > begins or len(tokenizer.decode(ids[:num_kept])) > begins


@pytest.mark.parametrize("kind", KINDS)
@FIXTURE_OK
@given(data=st.data())
def test_an_answer_that_moves_to_another_worker_goes_on_as_if_it_had_stayed(kind, data, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    ids, stop = data.draw(answers(tokenizer)), data.draw(STOPS)
    undisturbed = TextStream(tokenizer, stop)
    history = [(0, "")]
    for i in ids:
        if undisturbed.ended:
            break
        undisturbed.push([i])
        history.append((undisturbed.num_released, undisturbed.text))
    if not undisturbed.ended:
        undisturbed.finish()
    # The worker is lost after any of its messages; the reader has what had been released by then.
    num_sent, sent = data.draw(st.sampled_from(history))
    resumed = TextStream(tokenizer, stop)
    replayed = resumed.replay(ids[:num_sent])
    assert resumed.num_released == num_sent and replayed.num_released == num_sent
    for i in ids[num_sent:]:
        if resumed.ended:
            break
        sent += resumed.push([i]).text
    if not resumed.ended:
        sent += resumed.finish().text
    assert list(resumed.texts) == list(undisturbed.texts)
    assert sent == undisturbed.text


def test_a_stop_string_over_token_borders_keeps_the_token_in_which_it_begins(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = [i for text in ("fo", "o ST", "OP", " more") for i in tokenizer.encode(text, add_special=False)]
    stream = TextStream(tokenizer, ["STOP"])
    released = stream.push(ids)
    assert released.stopped and stream.text == "foo "
    assert tokenizer.decode(ids[: stream.num_released]).startswith("foo S")
    assert not tokenizer.decode(ids[: stream.num_released - 1]).startswith("foo S")


def test_of_two_stop_strings_the_one_that_is_complete_first_wins(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["byte_level"]
    for cuts in (1, 2, 9):
        stream = TextStream(tokenizer, ["bcd", "c"])
        ids = tokenizer.encode("abcd", add_special=False)
        for start in range(0, len(ids), cuts):
            if not stream.ended:
                stream.push(ids[start : start + cuts])
        assert stream.ended and stream.text == "ab"


def test_the_beginning_of_a_stop_string_is_given_out_when_the_answer_ends_with_it(tokenizer):
    stream = TextStream(tokenizer, ["STOP"])
    ids = tokenizer.encode("a STO", add_special=False)
    held = stream.push(ids)
    assert not held.text.endswith("O")
    assert held.text + stream.finish().text == tokenizer.decode(ids)


def test_an_end_of_sequence_token_has_no_text_and_counts(tokenizer):
    stream = TextStream(tokenizer)
    ids = [*tokenizer.encode("hi", add_special=False), tokenizer.token_id("</s>")]
    stream.push(ids)
    stream.finish()
    assert stream.num_released == len(ids) and stream.text == tokenizer.decode(ids)


def whole_answer(tokenizer, ids: list[int], **rules) -> tuple[int, str, bool]:
    """Tokens and text of an answer, pushed one by one."""
    stream = TextStream(tokenizer, **rules)
    for token_id in ids:
        if stream.push([token_id]).stopped:
            return stream.num_released, stream.text, True
    return (stream.num_released, stream.text, True) if stream.finish().stopped else (len(ids), stream.text, False)


@pytest.mark.parametrize("stop", ["x j", "jumps", " ", "fox jumps over", "never"])
def test_a_stop_string_that_is_kept_ends_the_answer_with_its_last_character(tokenizer, stop):
    text = "brown fox jumps over the lazy dog"
    ids = tokenizer.encode(text, add_special=False)
    num_tokens, kept, stopped = whole_answer(tokenizer, ids, stop=[stop], keep_stop=True)
    _, cut, _ = whole_answer(tokenizer, ids, stop=[stop])
    whole = tokenizer.decode(ids)
    assert stopped == (stop in whole)
    assert kept == (cut + stop if stopped else whole)
    # No token beyond the one that holds the last character.
    assert len(tokenizer.decode(ids[: num_tokens - 1])) < len(kept) <= len(tokenizer.decode(ids[:num_tokens]))


def test_a_stop_string_that_is_kept_holds_no_token_back(tokenizer):
    stream = TextStream(tokenizer, ["fox jumps"], keep_stop=True)
    ids = tokenizer.encode("fox jum", add_special=False)
    assert sum(stream.push([token_id]).num_released for token_id in ids) == len(ids)


@pytest.mark.parametrize("kind", KINDS)
@FIXTURE_OK
@given(data=st.data())
def test_stop_strings_count_behind_the_least_number_of_tokens(kind, data, tokenizers_by_kind):
    tokenizer = tokenizers_by_kind[kind]
    ids = data.draw(answers(tokenizer))
    min_tokens = data.draw(st.integers(0, len(ids)))
    num_tokens, text, stopped = whole_answer(tokenizer, ids, stop=["a", " "], min_tokens=min_tokens)
    assert num_tokens >= min_tokens
    if stopped:
        assert (
            text + "a" == tokenizer.decode(ids)[: len(text) + 1] or text + " " == tokenizer.decode(ids)[: len(text) + 1]
        )
    else:
        assert text == tokenizer.decode(ids)
