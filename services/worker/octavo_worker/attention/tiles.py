"""Cuts a batch's attention into tiles for the compiled kernels: pure arithmetic over rows, once per step.

A pair is one query head (of those that share a key-value head) of one fed token. T fed tokens, R rows.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.attention.base import AttnBatch

TILE = 16


def cut_tiles(batch: AttnBatch, pairs_a_token: int) -> np.ndarray:
    """Tiles of 16 neighbouring pairs of a row, int32 [tiles, 4]: row, its first fed token, first pair, number of pairs.

    The longest come first: threads that draw the last ones are then done at about the same time.
    """
    counts_R, starts_R = batch.num_tokens_R.astype(np.int64), batch.starts_R.astype(np.int64)
    first_R = np.cumsum(counts_R) - counts_R
    num_tiles_R = -(-counts_R * pairs_a_token // TILE)
    row_of = np.repeat(np.arange(len(counts_R)), num_tiles_R)
    first_pair = (np.arange(len(row_of)) - np.repeat(np.cumsum(num_tiles_R) - num_tiles_R, num_tiles_R)) * TILE
    num_pairs = np.minimum(TILE, counts_R[row_of] * pairs_a_token - first_pair)
    cost = starts_R[row_of] + (first_pair + num_pairs) // pairs_a_token
    order = np.argsort(-cost, kind="stable")
    tiles = np.stack([row_of, first_R[row_of], first_pair, num_pairs], axis=1)[order]
    return np.ascontiguousarray(tiles, dtype=np.int32)


def visible_lengths(batch: AttnBatch) -> np.ndarray:
    """How many keys each fed token sees, itself included: int32 [T]."""
    counts_R, starts_R = batch.num_tokens_R.astype(np.int64), batch.starts_R.astype(np.int64)
    first_R = np.cumsum(counts_R) - counts_R
    within_T = np.arange(int(counts_R.sum())) - np.repeat(first_R, counts_R)
    return (np.repeat(starts_R, counts_R) + within_T + 1).astype(np.int32)
