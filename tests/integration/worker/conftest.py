from __future__ import annotations

import pytest
from fakes.small_tokenizers import bundle_of, byte_level_tokenizer


@pytest.fixture(scope="session")
def bundle():
    return bundle_of(byte_level_tokenizer())
