"""Changes to one row of logits before a token is chosen from it. In place, float32; knows no sequences.

Forbidden tokens get minus infinity, which every later change leaves as it is, so masks may come in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo_worker.engine.types import Token


def allow_only(logits_V: np.ndarray, ids: np.ndarray) -> None:
    """Forbid all tokens but these."""
    kept = logits_V[ids]
    logits_V.fill(-np.inf)
    logits_V[ids] = kept


def forbid(logits_V: np.ndarray, ids: np.ndarray | list[Token]) -> None:
    """Forbid these tokens."""
    logits_V[ids] = -np.inf


def keep_bits(logits_V: np.ndarray, bits: np.ndarray) -> None:
    """Forbid tokens whose bit is 0; bytes, lowest bit first. Tokens behind the last byte are forbidden."""
    allowed = np.unpackbits(bits, bitorder="little")[: len(logits_V)].view(np.bool_)
    np.copyto(logits_V[: len(allowed)], -np.inf, where=~allowed)
    logits_V[len(allowed) :] = -np.inf


def completes(bad_words: Sequence[tuple[Token, ...]], output: Sequence[Token]) -> list[Token]:
    """Tokens that would complete one of the sequences after this output."""
    found: list[Token] = []
    for word in bad_words:
        head = len(word) - 1
        if head <= len(output) and tuple(output[len(output) - head :]) == word[:-1]:
            found.append(word[-1])
    return found


def penalise_repetition(logits_V: np.ndarray, ids: np.ndarray, penalty: float) -> None:
    """Make tokens less likely: positive logits are divided by the penalty, negative ones multiplied."""
    values = logits_V[ids]
    factor = np.float32(penalty)
    logits_V[ids] = np.where(values < 0, values * factor, values / factor)


def penalise_occurrences(
    logits_V: np.ndarray, ids: np.ndarray, counts: np.ndarray, *, presence: float, frequency: float
) -> None:
    """Subtract ``presence`` once and ``frequency`` for each occurrence."""
    logits_V[ids] -= counts.astype(np.float32) * np.float32(frequency)
    logits_V[ids] -= np.float32(presence)
