"""Products of quantised rows with a matrix of quantised weights, in groups of 32: see `integer` for the arithmetic.

T rows, I inputs, O outputs; both are multiples of what the format pads them to.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.integer import Format, make_dot_rows
from octavo_worker.kernels.program import FIRST_OWN, FRAME, ROWS, Stage
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add, njit

WEIGHTS, INTS, SCALES, SUMS, INPUTS, TILES, OUT, STRIDE, ADDS, BIAS = range(FIRST_OWN, FIRST_OWN + 10)
_NUM_ARGUMENTS = FIRST_OWN + 10
# A task: so many tiles of outputs for so many rows. The rows of a task stay in the first cache beside a tile.
TILES_PER_TASK, ROWS_PER_TASK = 2, 32
_dot_8, _dot_4, _dot_2, _dot_1 = (make_dot_rows(num_rows) for num_rows in (8, 4, 2, 1))


@njit(nogil=True, error_model="numpy")
def _add_bias(a, tile, first, last):  # noqa: ANN001, ANN202 - compiled
    bias = carray(as_pointer(a[BIAS] + 4 * tile * LANES), (LANES,), np.float32)
    for row in range(first, last):
        out = carray(as_pointer(a[OUT] + 4 * (row * a[STRIDE] + tile * LANES)), (LANES,), np.float32)
        for i in range(LANES):
            out[i] += bias[i]


@cache
def _kernel(form: Format) -> team.Launcher:
    """The kernel for one format; numba compiles it for its constants."""
    # Numbers alone, or the kernel would not be found again on disk.
    place, group_bytes, num_scales = form.place, form.group_bytes, form.num_scales

    def grouped_matmul(raw):  # noqa: ANN001, ANN202 - compiled
        a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
        num_rows = carray(as_pointer(a[FRAME]), (ROWS + 1,), np.int64)[ROWS]
        parts = (num_rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
        num_tasks = parts * ((a[TILES] + TILES_PER_TASK - 1) // TILES_PER_TASK)
        groups = a[INPUTS] // 32
        while True:
            task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
            if task >= num_tasks:
                break
            first, last = task % parts * ROWS_PER_TASK, min(num_rows, (task % parts + 1) * ROWS_PER_TASK)
            first_tile = task // parts * TILES_PER_TASK
            for tile in range(first_tile, min(a[TILES], first_tile + TILES_PER_TASK)):
                weights = a[WEIGHTS] + tile * groups * group_bytes
                row = first
                while row < last:
                    ints, out = a[INTS] + row * a[INPUTS], a[OUT] + 4 * (row * a[STRIDE] + tile * LANES)
                    scales, sums = a[SCALES] + 4 * row * groups * num_scales, a[SUMS] + 4 * row * groups * num_scales
                    if last - row >= 8:
                        _dot_8(place, weights, ints, scales, sums, a[INPUTS], out, a[STRIDE], a[ADDS])
                        row += 8
                    elif last - row >= 4:
                        _dot_4(place, weights, ints, scales, sums, a[INPUTS], out, a[STRIDE], a[ADDS])
                        row += 4
                    elif last - row >= 2:
                        _dot_2(place, weights, ints, scales, sums, a[INPUTS], out, a[STRIDE], a[ADDS])
                        row += 2
                    else:
                        _dot_1(place, weights, ints, scales, sums, a[INPUTS], out, a[STRIDE], a[ADDS])
                        row += 1
                if a[BIAS]:
                    _add_bias(a, tile, first, last)

    return team.compiled(grouped_matmul)


def matmul_stage(
    form: Format,
    *,
    weights: int,
    ints: int,
    scales: int,
    sums: int,
    num_inputs: int,
    num_outputs: int,
    out: int,
    stride: int,
    adds: bool = False,
    bias: int = 0,
) -> Stage:
    """out[t, o] = (or +=) sum over i of x[t, i] w[o, i] + bias[o]; addresses and sizes, rows `stride` floats apart.

    A bias has as many values as there are outputs; its address 0 is none.
    """
    assert num_inputs % 32 == 0 and num_outputs % LANES == 0, "sizes are padded by now"
    tiles = num_outputs // LANES
    return Stage(_kernel(form), (weights, ints, scales, sums, num_inputs, tiles, out, stride, int(adds), bias))
