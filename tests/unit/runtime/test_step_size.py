from __future__ import annotations

import pytest

from octavo_worker.engine.types import Limits
from octavo_worker.runtime.devices import default_batch_tokens


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("max_sequences", [1, 64, 200, 1000])
def test_a_step_is_as_long_as_threads_allow_and_has_room_for_each_row(num_threads: int, max_sequences: int) -> None:
    tokens = default_batch_tokens(num_threads, max_sequences)
    assert Limits(max_batch_tokens=tokens, max_sequences=max_sequences, max_sequence_tokens=4096)
    assert tokens == max(max_sequences, min(512, 128 * num_threads))
