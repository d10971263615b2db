"""Products of rows of bfloat16 with a matrix of bfloat16, or of groups that become it: see `bfloat16`.

T rows, I inputs, O outputs; both are multiples of what the format pads them to. Few rows go by vector instructions,
many by the matrix unit where there is one: the bits are the same. Groups are unpacked tile by tile beside the product.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.amx import SIDE, TILE_BYTES, release_tiles, shape_tiles
from octavo_worker.kernels.amx_bf16 import has_amx_bf16, make_dot_tiles, put_tile
from octavo_worker.kernels.bfloat16 import (
    BFLOAT16,
    GROUP_BYTES,
    flush_subnormals,
    keep_subnormals,
    make_dot_rows,
)
from octavo_worker.kernels.integer import FORMATS, GROUP, Format
from octavo_worker.kernels.program import FIRST_OWN, FRAME, ROWS, Stage
from octavo_worker.kernels.unpacking import unpack_groups
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add, njit

WEIGHTS, SHORTS, FLOATS, INPUTS, TILES, OUT, STRIDE, ADDS, BIAS, SCRATCH, SCRATCH_BYTES = range(
    FIRST_OWN, FIRST_OWN + 11
)
_NUM_ARGUMENTS = FIRST_OWN + 11
# A task: so many tiles of outputs for so many rows. Who unpacks does it once for all of a task's rows.
TILES_PER_TASK = 2
_ROWS_PER_TASK, _ROWS_PER_UNPACKING = 128, 512
# Rows that the matrix unit is worth starting for.
FEWEST_ROWS = 4
_SUMS_BYTES = 4 * TILE_BYTES

_dot_8, _dot_4, _dot_2, _dot_1 = (make_dot_rows(num_rows) for num_rows in (8, 4, 2, 1))
_tiles_22, _tiles_21, _tiles_12, _tiles_11 = (make_dot_tiles(i, j) for i in (2, 1) for j in (2, 1))


def scratch_bytes(num_inputs: int) -> int:
    """Work space of a thread: sums, and the tiles of a task unpacked."""
    return _SUMS_BYTES + TILES_PER_TASK * num_inputs // GROUP * GROUP_BYTES


@njit(nogil=True, error_model="numpy")
def _by_vectors(a, weights, tile, first, last):  # noqa: ANN001, ANN202 - compiled
    row = first
    while row < last:
        floats, out = a[FLOATS] + 4 * row * a[INPUTS], a[OUT] + 4 * (row * a[STRIDE] + tile * LANES)
        if last - row >= 8:
            _dot_8(weights, floats, a[INPUTS], out, a[STRIDE], a[ADDS])
            row += 8
        elif last - row >= 4:
            _dot_4(weights, floats, a[INPUTS], out, a[STRIDE], a[ADDS])
            row += 4
        elif last - row >= 2:
            _dot_2(weights, floats, a[INPUTS], out, a[STRIDE], a[ADDS])
            row += 2
        else:
            _dot_1(weights, floats, a[INPUTS], out, a[STRIDE], a[ADDS])
            row += 1


@njit(nogil=True, error_model="numpy")
def _by_tiles(a, weights, tile, num_tiles, first, last, sums):  # noqa: ANN001, ANN202 - compiled
    tile_bytes = a[INPUTS] // GROUP * GROUP_BYTES
    row = first
    while row < last:
        shorts = a[SHORTS] + 2 * row * a[INPUTS]
        blocks = 2 if last - row > SIDE else 1
        if blocks == 2 and num_tiles == 2:
            _tiles_22(weights, tile_bytes, shorts, a[INPUTS], sums)
        elif blocks == 2:
            _tiles_21(weights, tile_bytes, shorts, a[INPUTS], sums)
        elif num_tiles == 2:
            _tiles_12(weights, tile_bytes, shorts, a[INPUTS], sums)
        else:
            _tiles_11(weights, tile_bytes, shorts, a[INPUTS], sums)
        for block in range(blocks):
            num_rows = min(SIDE, last - row)
            for j in range(num_tiles):
                out = a[OUT] + 4 * (row * a[STRIDE] + (tile + j) * LANES)
                put_tile(sums + TILE_BYTES * (block * num_tiles + j), num_rows, out, a[STRIDE], a[ADDS])
            row += num_rows


@njit(nogil=True, error_model="numpy")
def _add_bias(a, first_tile, last_tile, first, last):  # noqa: ANN001, ANN202 - compiled
    num = (last_tile - first_tile) * LANES
    bias = carray(as_pointer(a[BIAS] + 4 * first_tile * LANES), (num,), np.float32)
    for row in range(first, last):
        out = carray(as_pointer(a[OUT] + 4 * (row * a[STRIDE] + first_tile * LANES)), (num,), np.float32)
        for i in range(num):
            out[i] += bias[i]


@cache
def _kernel(form: Format, use_tiles: bool) -> team.Launcher:
    """The kernel for one format, with the matrix unit or without; numba compiles it for its constants."""
    # Numbers alone, or the kernel would not be found again on disk.
    is_packed = form != BFLOAT16
    place = FORMATS.index(form) if is_packed else 0
    group_bytes, most_rows = form.group_bytes, _ROWS_PER_UNPACKING if is_packed else _ROWS_PER_TASK

    def float_matmul(raw):  # noqa: ANN001, ANN202 - compiled
        a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
        num_rows = carray(as_pointer(a[FRAME]), (ROWS + 1,), np.int64)[ROWS]
        parts = (num_rows + most_rows - 1) // most_rows
        num_tasks = parts * ((a[TILES] + TILES_PER_TASK - 1) // TILES_PER_TASK)
        groups = a[INPUTS] // GROUP
        sums = a[SCRATCH] + a[SCRATCH_BYTES] * fetch_add(a.ctypes.data + 8 * team.SLOT, 1)
        before = flush_subnormals()
        # use_tiles is a constant, asked first each time: what it excludes is not compiled, and could not be where there
        # is no such unit.
        by_tiles = use_tiles and num_rows >= FEWEST_ROWS
        if use_tiles and by_tiles:
            shape_tiles()
        while True:
            task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
            if task >= num_tasks:
                break
            first, last = task % parts * most_rows, min(num_rows, (task % parts + 1) * most_rows)
            first_tile = task // parts * TILES_PER_TASK
            last_tile = min(a[TILES], first_tile + TILES_PER_TASK)
            weights, tile_bytes = a[WEIGHTS] + first_tile * groups * group_bytes, groups * GROUP_BYTES
            if is_packed:
                unpack_groups(place, weights, (last_tile - first_tile) * groups, sums + _SUMS_BYTES)
                weights = sums + _SUMS_BYTES
            if use_tiles and by_tiles:
                _by_tiles(a, weights, first_tile, last_tile - first_tile, first, last, sums)
            else:
                for tile in range(first_tile, last_tile):
                    _by_vectors(a, weights + (tile - first_tile) * tile_bytes, tile, first, last)
            if a[BIAS]:
                _add_bias(a, first_tile, last_tile, first, last)
        if use_tiles and by_tiles:
            release_tiles()
        keep_subnormals(before)

    return team.compiled(float_matmul)


def float_matmul_stage(
    form: Format,
    *,
    weights: int,
    shorts: int,
    floats: int,
    num_inputs: int,
    num_outputs: int,
    out: int,
    stride: int,
    scratch: int,
    adds: bool = False,
    bias: int = 0,
) -> Stage:
    """out[t, o] = (or +=) sum over i of x[t, i] w[o, i] + bias[o]; addresses and sizes, rows `stride` floats apart.

    The rows twice, as `round_row` writes them; of the bfloat16 ones a multiple of 16 must be readable. A bias has as
    many values as there are outputs; its address 0 is none. `scratch` has `scratch_bytes` for each thread.
    """
    assert num_inputs % GROUP == 0 and num_outputs % LANES == 0, "sizes are padded by now"
    values = (
        *(weights, shorts, floats, num_inputs, num_outputs // LANES, out, stride, int(adds), bias),
        *(scratch, scratch_bytes(num_inputs)),
    )
    return Stage(_kernel(form, has_amx_bf16()), values)
