from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "unit" / "text")]


@pytest.fixture(scope="session")
def bundle():
    from tests_text_support import bundle_of, byte_level_tokenizer

    return bundle_of(byte_level_tokenizer())
