"""What is done to queries and keys between their product and attention; in place, float32.

Head norm and rotation as the model says. Then, where keys become int8, two changes that leave attention as it is and
make them fit:

- queries and keys are multiplied by one orthogonal matrix, which spreads the few large dims of keys over all of them
  (QuaRot, arXiv 2404.00456): a Hadamard matrix in blocks, the largest that the number of 16s in a head allows;
- a fixed vector is taken from all keys of a head: it changes all scores of a query alike, and softmax does not see that
  (SageAttention, arXiv 2410.02367).

T rows, N query heads, G key-value heads, H head dim, P rotated pairs. A row holds N + 2 G heads.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.kv_int8 import mix_16
from octavo_worker.kernels.program import FIRST_OWN, FRAME, FRAME_VALUES, ROWS, Stage
from octavo_worker.kernels.quantize import normalise
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add, njit

X, STRIDE, NUM_Q, NUM_KV, HEAD_DIM, PAIRS, Q_NORM, K_NORM, EPS, K_MEAN = range(FIRST_OWN, FIRST_OWN + 10)
_NUM_ARGUMENTS = FIRST_OWN + 10
# Of the frame: address of the step's rotations [T, P, 2], cosine and sine.
ROTATIONS = 11
_ROWS_PER_TASK = 4


_HALF_ROOT = np.float32(0.5**0.5)


@njit(nogil=True, error_model="numpy")
def mix_head(head, address):  # noqa: ANN001, ANN201 - compiled; `head` lies at the address
    """Multiply by the block Hadamard matrix: 16 by 16 first, then pairs of 16s at growing distances."""
    parts = len(head) // LANES
    for part in range(parts):
        mix_16(address + 4 * LANES * part)
    reach = 1
    while parts % (2 * reach) == 0:
        for first in range(0, parts, 2 * reach):
            for part in range(first, first + reach):
                for i in range(LANES):
                    left, right = head[part * LANES + i], head[(part + reach) * LANES + i]
                    head[part * LANES + i] = (left + right) * _HALF_ROOT
                    head[(part + reach) * LANES + i] = (left - right) * _HALF_ROOT
        reach *= 2


@njit(nogil=True, error_model="numpy")
def _turn_row(a, row, rotations):  # noqa: ANN001, ANN202 - compiled
    dim = a[HEAD_DIM]
    x = carray(as_pointer(a[X] + 4 * row * a[STRIDE]), ((a[NUM_Q] + a[NUM_KV]) * dim,), np.float32)
    turns = carray(as_pointer(rotations + 8 * row * a[PAIRS]), (2 * a[PAIRS],), np.float32)
    for index in range(a[NUM_Q] + a[NUM_KV]):
        head, at = x[index * dim : (index + 1) * dim], a[X] + 4 * (row * a[STRIDE] + index * dim)
        norm = a[Q_NORM] if index < a[NUM_Q] else a[K_NORM]
        if norm:
            normalise(at, norm, dim, a[EPS], at)
        for pair in range(a[PAIRS]):
            cos, sin = turns[2 * pair], turns[2 * pair + 1]
            left, right = head[2 * pair], head[2 * pair + 1]
            head[2 * pair] = left * cos - right * sin
            head[2 * pair + 1] = left * sin + right * cos
        if not a[K_MEAN]:
            continue
        mix_head(head, at)
        if index >= a[NUM_Q]:
            mean = carray(as_pointer(a[K_MEAN] + 4 * (index - a[NUM_Q]) * dim), (dim,), np.float32)
            for i in range(dim):
                head[i] -= mean[i]
    if a[K_MEAN]:
        for index in range(a[NUM_Q] + a[NUM_KV], a[NUM_Q] + 2 * a[NUM_KV]):
            address = a[X] + 4 * (row * a[STRIDE] + index * dim)
            mix_head(carray(as_pointer(address), (dim,), np.float32), address)


@team.compiled
def _place(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    frame = carray(as_pointer(a[FRAME]), (FRAME_VALUES,), np.int64)
    while True:
        first = fetch_add(a.ctypes.data + 8 * team.NEXT, 1) * _ROWS_PER_TASK
        if first >= frame[ROWS]:
            break
        for row in range(first, min(frame[ROWS], first + _ROWS_PER_TASK)):
            _turn_row(a, row, frame[ROTATIONS])


def place_stage(
    *,
    x: int,
    stride: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_pairs: int,
    k_mean: int = 0,
    q_norm: int = 0,
    k_norm: int = 0,
    eps: float = 0.0,
) -> Stage:
    """Normalise queries and keys head by head, unless the weights' addresses are 0; rotate them; mix all heads.

    ``k_mean`` [G, H] is taken from the mixed keys; with the address 0 nothing is mixed.
    """
    values = (x, stride, num_heads, num_kv_heads, head_dim, num_pairs, q_norm, k_norm, round(eps * 2**62), k_mean)
    return Stage(_place, values)
