"""Products of quantised rows with a matrix of quantised weights, in groups: see `integer` for the arithmetic.

T rows, I inputs, O outputs; both are multiples of what the format pads them to. Groups of 64 of many rows go through
the matrix unit where there is one: the bits are the same.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.amx import has_amx, release_tiles, shape_tiles
from octavo_worker.kernels.amx_groups import make_dot_groups
from octavo_worker.kernels.integer import MIXED_64, Format, make_dot_rows
from octavo_worker.kernels.program import FIRST_OWN, FRAME, ROWS, Stage
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add, njit

WEIGHTS, INTS, SCALES, SUMS, INPUTS, TILES, OUT, STRIDE, ADDS, BIAS = range(FIRST_OWN, FIRST_OWN + 10)
_NUM_ARGUMENTS = FIRST_OWN + 10
# A task: so many tiles of outputs for so many rows. The rows of a task stay in the first cache beside a tile.
TILES_PER_TASK, ROWS_PER_TASK = 2, 32
# Rows that the matrix unit is worth using for: one block of 16 takes as long as the vectors do.
FEWEST_ROWS = 20
_dot_8, _dot_4, _dot_2, _dot_1 = (make_dot_rows(num_rows) for num_rows in (8, 4, 2, 1))
_groups_2, _groups_1 = make_dot_groups(2), make_dot_groups(1)


@njit(nogil=True, error_model="numpy")
def _add_bias(a, first_tile, last_tile, first, last):  # noqa: ANN001, ANN202 - compiled
    if a[BIAS] == 0:
        return
    num = (last_tile - first_tile) * LANES
    bias = carray(as_pointer(a[BIAS] + 4 * first_tile * LANES), (num,), np.float32)
    for row in range(first, last):
        out = carray(as_pointer(a[OUT] + 4 * (row * a[STRIDE] + first_tile * LANES)), (num,), np.float32)
        for i in range(num):
            out[i] += bias[i]


@njit(nogil=True, error_model="numpy")
def _by_tiles(a, weights, tile, num_tiles, first, last, num_groups):  # noqa: ANN001, ANN202 - compiled
    """FEWEST_ROWS to 32 rows by the matrix unit; 32 must be readable, or as many blocks of 16 as hold them."""
    ints, at = a[INTS] + first * a[INPUTS], 4 * first * num_groups
    scales, sums = a[SCALES] + at, a[SUMS] + at
    out, num_rows = a[OUT] + 4 * (first * a[STRIDE] + tile * LANES), last - first
    if num_tiles == 2:
        _groups_2(weights, ints, scales, sums, a[INPUTS], num_rows, out, a[STRIDE], a[ADDS])
    else:
        _groups_1(weights, ints, scales, sums, a[INPUTS], num_rows, out, a[STRIDE], a[ADDS])


@cache
def _kernel(form: Format, use_tiles: bool) -> team.Launcher:
    """The kernel for one format, with the matrix unit or without; numba compiles it for its constants."""
    # Numbers alone, or the kernel would not be found again on disk.
    place, group_bytes, num_scales, group_inputs = form.place, form.group_bytes, form.num_scales, form.group

    def grouped_matmul(raw):  # noqa: ANN001, ANN202 - compiled
        a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
        num_rows = carray(as_pointer(a[FRAME]), (ROWS + 1,), np.int64)[ROWS]
        parts = (num_rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
        num_tasks = parts * ((a[TILES] + TILES_PER_TASK - 1) // TILES_PER_TASK)
        groups = a[INPUTS] // group_inputs
        # use_tiles is a constant, asked first each time: what it excludes is not compiled, and could not be where there
        # is no such unit.
        by_tiles = use_tiles and num_rows >= FEWEST_ROWS
        if use_tiles and by_tiles:
            shape_tiles()
        while True:
            task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
            if task >= num_tasks:
                break
            first, last = task % parts * ROWS_PER_TASK, min(num_rows, (task % parts + 1) * ROWS_PER_TASK)
            first_tile = task // parts * TILES_PER_TASK
            last_tile = min(a[TILES], first_tile + TILES_PER_TASK)
            done = first
            if use_tiles and by_tiles and last - first >= FEWEST_ROWS:
                weights = a[WEIGHTS] + first_tile * groups * group_bytes
                _by_tiles(a, weights, first_tile, last_tile - first_tile, first, last, groups)
                done = last
            for tile in range(first_tile, last_tile):
                weights = a[WEIGHTS] + tile * groups * group_bytes
                row = done
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
            _add_bias(a, first_tile, last_tile, first, last)
        if use_tiles and by_tiles:
            release_tiles()

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

    A bias has as many values as there are outputs; its address 0 is none. Of the rows a multiple of 16 must be
    readable.
    """
    assert num_inputs % form.group == 0 and num_outputs % LANES == 0, "sizes are padded by now"
    tiles = num_outputs // LANES
    return Stage(
        _kernel(form, form == MIXED_64 and has_amx()),
        (weights, ints, scales, sums, num_inputs, tiles, out, stride, int(adds), bias),
    )
