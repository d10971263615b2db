"""Prefix keys: hashes by which placement finds workers that hold a prompt's beginning. Opaque to the scheduler."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

FIRST_LENGTH = 64


def prefix_keys(tokens: Sequence[int], *, model_digest: str, salt: str) -> list[str]:
    """Hash the first 64, 128, 256, ... tokens with the model and the tenant's salt; shortest first.

    Each key is 16 hex digits; a collision can only cost a worse placement.
    """
    keys: list[str] = []
    length = FIRST_LENGTH
    while length <= len(tokens):
        digest = hashlib.sha256(f"{model_digest}\0{salt}\0".encode())
        digest.update(array("i", tokens[:length]).tobytes())
        keys.append(digest.hexdigest()[:16])
        length *= 2
    return keys


def tokens_digest(tokens: Sequence[int]) -> bytes:
    """sha256 over the little-endian int32 ids; empty for no tokens. Proves that two sides hold the same beginning."""
    return hashlib.sha256(array("i", tokens).tobytes()).digest() if tokens else b""
