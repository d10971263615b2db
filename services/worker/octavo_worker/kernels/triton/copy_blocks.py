"""Copies whole blocks within the pool: all layers, K and V, scales too, whatever the format.

    pool[to(p), :] = pool[from(p), :]

P pairs, W words of 4 bytes in a block. `pairs: int64 [P, 2]` (from, to), `pool: [blocks, ...]` dense within a block. No
block may be source and target in one call, nor target twice: the copies run in any order.

Source: copy-on-write of PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import Launch, require, require_tensor

# Words that one program moves.
_WORDS = 4096


@triton.jit
def _copy_blocks(words_ptr, pairs_ptr, stride_block, num_words, WORDS: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    w_W = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    valid_W = w_W < num_words
    source = tl.load(pairs_ptr + 2 * pair)
    target = tl.load(pairs_ptr + 2 * pair + 1)
    moved_W = tl.load(words_ptr + source * stride_block + w_W, mask=valid_W)
    tl.store(words_ptr + target * stride_block + w_W, moved_W, mask=valid_W)


def copy_blocks_launch(pool: Tensor, pairs_P2: Tensor) -> Launch:
    """The launch that copies blocks. Raises ValueError for arguments that do not fit each other."""
    require_tensor("pairs", pairs_P2, (None, 2), (torch.int64,), device=pool.device)
    require(pool.is_contiguous() and pairs_P2.is_contiguous(), "pool and pairs must be dense")
    num_bytes = pool[0].numel() * pool.element_size()
    require(num_bytes % 4 == 0, f"a block of {num_bytes} bytes is not whole words")
    words = pool.view(pool.shape[0], -1).view(torch.int32)
    return Launch(
        kernel=_copy_blocks,
        grid=(pairs_P2.shape[0], triton.cdiv(words.shape[1], _WORDS)),
        args={
            "words_ptr": words,
            "pairs_ptr": pairs_P2,
            "stride_block": words.stride(0),
            "num_words": words.shape[1],
        },
        constants={"WORDS": _WORDS},
        num_warps=8,
    )


def copy_blocks(pool: Tensor, pairs_P2: Tensor) -> None:
    """Copy block `from` to block `to` for every pair."""
    copy_blocks_launch(pool, pairs_P2).run()
