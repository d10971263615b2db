"""Tokenizers of every supported kind, each built once."""

from __future__ import annotations

import pytest
from fakes.small_tokenizers import MAKERS, bundle_of

from octavo_common.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizers_by_kind() -> dict[str, Tokenizer]:
    return {kind: Tokenizer(bundle_of(make(), add_bos=kind != "byte_level")) for kind, make in MAKERS.items()}


@pytest.fixture(params=sorted(MAKERS))
def tokenizer(request, tokenizers_by_kind) -> Tokenizer:
    return tokenizers_by_kind[request.param]
