"""Rows of a packed matrix by token, as floats: the embedding of a model that keeps no float weights.

The layouts are those of `integer` and `bfloat16`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.bfloat16 import BFLOAT16, short_at
from octavo_worker.kernels.groups import mix_group
from octavo_worker.kernels.integer import GROUP, Format, half_at
from octavo_worker.kernels.program import FIRST_OWN, FRAME, FRAME_VALUES, ROWS, Stage
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add

WEIGHTS, WIDTH, OUT = range(FIRST_OWN, FIRST_OWN + 3)
_NUM_ARGUMENTS = FIRST_OWN + 3
# Of the frame: address of the step's token ids, int64 [T].
TOKENS = 12
_ROWS_PER_TASK = 4


@cache
def _kernel(form: Format) -> team.Launcher:
    group_bytes, bits, has_minima, mixes = form.group_bytes, form.bits, form.has_minima, form.mixed
    zero = np.float32(form.zero)
    scales_at = bits * 8 * LANES // 2

    def embed(raw):  # noqa: ANN001, ANN202 - compiled
        a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
        frame = carray(as_pointer(a[FRAME]), (FRAME_VALUES,), np.int64)
        tokens = carray(as_pointer(frame[TOKENS]), (frame[ROWS],), np.int64)
        groups = a[WIDTH] // GROUP
        while True:
            first = fetch_add(a.ctypes.data + 8 * team.NEXT, 1) * _ROWS_PER_TASK
            if first >= frame[ROWS]:
                break
            for row in range(first, min(frame[ROWS], first + _ROWS_PER_TASK)):
                tile, lane = tokens[row] // LANES, tokens[row] % LANES
                out = carray(as_pointer(a[OUT] + 4 * row * a[WIDTH]), (a[WIDTH],), np.float32)
                for group in range(groups):
                    base = a[WEIGHTS] + (tile * groups + group) * group_bytes
                    ints = carray(as_pointer(base), (scales_at,), np.uint8)
                    delta = half_at(base + scales_at + 2 * lane)
                    minimum = half_at(base + scales_at + 2 * (LANES + lane)) if has_minima else np.float32(0.0)
                    for i in range(GROUP):
                        vector = i // 4
                        if bits == 8:
                            q = ints[64 * vector + 4 * lane + i % 4]
                        else:
                            q = (ints[64 * (vector % 4) + 4 * lane + i % 4] >> (vector // 4 * 4)) & 15
                        out[group * GROUP + i] = (np.float32(q) - zero) * delta + minimum
                    if mixes:
                        mix_group(out.ctypes.data + 4 * GROUP * group)

    return team.compiled(embed)


@team.compiled
def _embed_shorts(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    frame = carray(as_pointer(a[FRAME]), (FRAME_VALUES,), np.int64)
    tokens = carray(as_pointer(frame[TOKENS]), (frame[ROWS],), np.int64)
    while True:
        first = fetch_add(a.ctypes.data + 8 * team.NEXT, 1) * _ROWS_PER_TASK
        if first >= frame[ROWS]:
            break
        for row in range(first, min(frame[ROWS], first + _ROWS_PER_TASK)):
            out = carray(as_pointer(a[OUT] + 4 * row * a[WIDTH]), (a[WIDTH],), np.float32)
            lane = a[WEIGHTS] + 2 * (tokens[row] // LANES) * LANES * a[WIDTH] + 4 * (tokens[row] % LANES)
            for i in range(a[WIDTH]):
                out[i] = short_at(lane + 4 * LANES * (i // 2) + 2 * (i % 2))


def embedding_stage(form: Format, *, weights: int, width: int, out: int) -> Stage:
    """out[t] = row of the step's token t; float32 rows, dense."""
    kernel = _embed_shorts if form == BFLOAT16 else _kernel(form)
    return Stage(kernel, (weights, width, out))
