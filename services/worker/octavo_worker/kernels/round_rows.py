"""Row kernels around products of bfloat16: what is between two of them, ending in rounded rows. See `bfloat16`.

T rows, D width. Rounded rows are kept twice, as float32 and as bfloat16: vector instructions want the ones, the matrix
unit the others. Each row is one thread's: its result depends on nothing but itself.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.bfloat16 import round_row
from octavo_worker.kernels.integer import GROUP, gate_group
from octavo_worker.kernels.program import FIRST_OWN, Stage
from octavo_worker.kernels.quantize import next_rows, normalise
from octavo_worker.kernels.vector import carray

X, X_STRIDE, WIDTH, FLOATS, SHORTS, WEIGHT, EPS = range(FIRST_OWN, FIRST_OWN + 7)
_NUM_ARGUMENTS = FIRST_OWN + 7


@team.compiled
def _round(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            at = row * a[WIDTH]
            round_row(a[X] + 4 * row * a[X_STRIDE], a[WIDTH], a[FLOATS] + 4 * at, a[SHORTS] + 2 * at)


@team.compiled
def _norm_round(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            floats = a[FLOATS] + 4 * row * a[WIDTH]
            normalise(a[X] + 4 * row * a[X_STRIDE], a[WEIGHT], a[WIDTH], a[EPS], floats)
            round_row(floats, a[WIDTH], floats, a[SHORTS] + 2 * row * a[WIDTH])


@team.compiled
def _gate_round(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    width = a[WIDTH]
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            gate, floats = a[X] + 4 * row * a[X_STRIDE], a[FLOATS] + 4 * row * width
            for at in range(0, 4 * width, 4 * GROUP):
                gate_group(gate + at, gate + 4 * width + at, floats + at)
            round_row(floats, width, floats, a[SHORTS] + 2 * row * width)


def round_stage(*, x: int, stride: int, width: int, floats: int, shorts: int) -> Stage:
    """Rows of x (float32, `stride` apart), rounded; `floats` may be x."""
    return Stage(_round, (x, stride, width, floats, shorts))


def norm_round_stage(*, x: int, stride: int, width: int, floats: int, shorts: int, weight: int, eps: float) -> Stage:
    """Root mean square norm, rounded."""
    return Stage(_norm_round, (x, stride, width, floats, shorts, weight, round(eps * 2**62)))


def gate_round_stage(*, x: int, width: int, floats: int, shorts: int) -> Stage:
    """silu(gate) * up for rows that hold the gate, then up (2 * width floats); rounded."""
    return Stage(_gate_round, (x, 2 * width, width, floats, shorts))
