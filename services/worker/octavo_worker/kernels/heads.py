"""Root mean square norms of single heads in float32 on a CPU, in place and in one pass over the rows of q and k.

T tokens, X heads, H head dim. A head's result does not depend on other heads or tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_worker.kernels import team
from octavo_worker.kernels.rows import sum_of_squares
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add

_A = team.FIRST_ARGUMENT
NUM_TOKENS, NUM_HEADS, HEAD_DIM, X, X_TOKEN, WEIGHT, EPS, TOKENS_PER_TASK = range(_A, _A + 8)
NUM_ARGUMENTS = _A + 8

# Below so many floats, threads cost more than they save.
_WORTH_THREADS = 1 << 15


@team.compiled
def _norm_heads(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    dim = a[HEAD_DIM]
    eps = np.float32(a[EPS] * 2.0**-62)
    while True:
        task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
        if task >= a[team.NUM_TASKS]:
            break
        for token in range(task * a[TOKENS_PER_TASK], min(a[NUM_TOKENS], (task + 1) * a[TOKENS_PER_TASK])):
            for head in range(a[NUM_HEADS]):
                x = carray(as_pointer(a[X] + 4 * (token * a[X_TOKEN] + head * dim)), (dim,), np.float32)
                weight = carray(as_pointer(a[WEIGHT] + 4 * head * dim), (dim,), np.float32)
                scale = np.float32(1.0) / np.sqrt(sum_of_squares(x) / np.float32(dim) + eps)
                for i in range(dim):
                    x[i] = x[i] * scale * weight[i]


def norm_heads_(heads_TXH: Tensor, weight_XH: Tensor, eps: float) -> None:
    """X / sqrt(mean(x^2) + eps) * weight for each head; the heads of a token must lie side by side."""
    num_tokens, num_heads, dim = heads_TXH.shape
    assert heads_TXH.stride()[1:] == (dim, 1)
    num_threads, tokens_per_task = 1, num_tokens
    if num_tokens * num_heads * dim >= _WORTH_THREADS:
        num_threads = torch.get_num_threads()
        tokens_per_task = -(-num_tokens // (4 * num_threads))
    args = team.Arguments(NUM_ARGUMENTS)
    args.values[:] = (
        *(0, -(-num_tokens // tokens_per_task), 0, num_tokens, num_heads, dim),
        *(heads_TXH.data_ptr(), heads_TXH.stride(0), weight_XH.data_ptr(), round(eps * 2**62), tokens_per_task),
    )
    _norm_heads.run(args, num_threads)
