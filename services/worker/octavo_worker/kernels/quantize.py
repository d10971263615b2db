"""Row kernels around the integer products: what is between two of them, ending in int8 groups. See `integer`.

T rows, D width. Each row is one thread's: its result depends on nothing but itself.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.groups import make_quantize_mixed, quantize_halves
from octavo_worker.kernels.integer import GROUP, Format, gate_group
from octavo_worker.kernels.program import FIRST_OWN, FRAME, ROWS, Stage
from octavo_worker.kernels.rows import sum_of_squares
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add, njit

X, X_STRIDE, WIDTH, INTS, SCALES, SUMS, ZERO, MIXES, WEIGHT, EPS, SCRATCH, OUT = range(FIRST_OWN, FIRST_OWN + 12)
_NUM_ARGUMENTS = FIRST_OWN + 12
ROWS_PER_TASK = 4
_quantize_mixed_32, _quantize_mixed_64 = make_quantize_mixed(32), make_quantize_mixed(64)


@njit(nogil=True, error_model="numpy")
def _quantize_row(a, values, row):  # noqa: ANN001, ANN202 - compiled
    """A row of floats at an address into the row's groups."""
    size = a[MIXES] if a[MIXES] else GROUP
    groups = a[WIDTH] // size
    for group in range(groups):
        at, group_at = row * groups + group, values + 4 * size * group
        ints = a[INTS] + size * at
        if a[MIXES] == 64:
            _quantize_mixed_64(group_at, ints, a[SCALES] + 4 * at, a[SUMS] + 4 * at, a[ZERO])
        elif a[MIXES]:
            _quantize_mixed_32(group_at, ints, a[SCALES] + 4 * at, a[SUMS] + 4 * at, a[ZERO])
        else:
            quantize_halves(group_at, ints, a[SCALES] + 8 * at, a[SUMS] + 8 * at, a[ZERO])


@njit(nogil=True, error_model="numpy")
def normalise(x_at, weight_at, width, eps, to):  # noqa: ANN001, ANN201 - compiled
    """X / sqrt(mean(x^2) + eps) * weight of a row, from an address to another or in place; eps in units of 2**-62."""
    x = carray(as_pointer(x_at), (width,), np.float32)
    weight = carray(as_pointer(weight_at), (width,), np.float32)
    out = carray(as_pointer(to), (width,), np.float32)
    scale = np.float32(1.0) / np.sqrt(sum_of_squares(x) / np.float32(width) + np.float32(eps * 2.0**-62))
    for i in range(width):
        out[i] = x[i] * scale * weight[i]


@njit(nogil=True, error_model="numpy")
def _scratch(a):  # noqa: ANN001, ANN202 - compiled
    """Address of this thread's row of floats."""
    return a[SCRATCH] + 4 * a[WIDTH] * fetch_add(a.ctypes.data + 8 * team.SLOT, 1)


@njit(nogil=True, error_model="numpy")
def next_rows(a):  # noqa: ANN001, ANN201 - compiled
    """The rows [first, last) of the next task; none when all are taken."""
    num_rows = carray(as_pointer(a[FRAME]), (ROWS + 1,), np.int64)[ROWS]
    first = fetch_add(a.ctypes.data + 8 * team.NEXT, 1) * ROWS_PER_TASK
    return first, min(num_rows, first + ROWS_PER_TASK)


@team.compiled
def _quantize(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            _quantize_row(a, a[X] + 4 * row * a[X_STRIDE], row)


@team.compiled
def _norm_quantize(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    scratch = _scratch(a)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            normalise(a[X] + 4 * row * a[X_STRIDE], a[WEIGHT], a[WIDTH], a[EPS], scratch)
            _quantize_row(a, scratch, row)


@team.compiled
def _norm(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            normalise(a[X] + 4 * row * a[X_STRIDE], a[WEIGHT], a[WIDTH], a[EPS], a[OUT] + 4 * row * a[WIDTH])


@team.compiled
def _gate_quantize(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    width = a[WIDTH]
    scratch = _scratch(a)
    while True:
        first, last = next_rows(a)
        if first >= last:
            break
        for row in range(first, last):
            gate = a[X] + 4 * row * a[X_STRIDE]
            for at in range(0, 4 * width, 4 * GROUP):
                gate_group(gate + at, gate + 4 * width + at, scratch + at)
            _quantize_row(a, scratch, row)


def _mixes(form: Format) -> int:
    """How many floats are mixed; 0 is none."""
    return form.group if form.mixed else 0


def quantize_stage(*, x: int, stride: int, width: int, ints: int, scales: int, sums: int, form: Format) -> Stage:
    """Rows of x (float32, `stride` apart) in groups; `form` is that of the weights they will meet."""
    return Stage(_quantize, (x, stride, width, ints, scales, sums, form.zero, _mixes(form)))


def norm_quantize_stage(
    *,
    x: int,
    stride: int,
    width: int,
    ints: int,
    scales: int,
    sums: int,
    form: Format,
    weight: int,
    eps: float,
    scratch: int,
) -> Stage:
    """Root mean square norm, then groups. `scratch` has a row of floats for each thread."""
    return Stage(
        _norm_quantize,
        (x, stride, width, ints, scales, sums, form.zero, _mixes(form), weight, round(eps * 2**62), scratch),
    )


def norm_stage(*, x: int, stride: int, width: int, weight: int, eps: float, out: int) -> Stage:
    """Root mean square norm into rows of floats."""
    return Stage(_norm, (x, stride, width, 0, 0, 0, 0, 0, weight, round(eps * 2**62), 0, out))


def gate_quantize_stage(*, x: int, width: int, ints: int, scales: int, sums: int, form: Format, scratch: int) -> Stage:
    """silu(gate) * up for rows that hold the gate, then up (2 * width floats); then groups."""
    return Stage(_gate_quantize, (x, 2 * width, width, ints, scales, sums, form.zero, _mixes(form), 0, 0, scratch))
