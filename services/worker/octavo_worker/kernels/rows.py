"""Norms and gates of float32 rows on a CPU, one pass each. A row's result does not depend on the other rows.

T rows, D width of a row. Torch makes about six passes for the norm and three for the gate.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_worker.kernels import team
from octavo_worker.kernels.vector import LANES, as_pointer, carray, exp32, fetch_add, njit, sum_squares

_A = team.FIRST_ARGUMENT
ROWS, WIDTH, X, X_ROW, WEIGHT, OUT, EPS, ROWS_PER_TASK = range(_A, _A + 8)
NUM_ARGUMENTS = _A + 8

# Below so many floats, threads cost more than they save.
_WORTH_THREADS = 1 << 15


@njit(nogil=True, error_model="numpy")
def sum_of_squares(x):  # noqa: ANN001, ANN201 - compiled
    """Of dense float32. The order of the sum is fixed by the width alone."""
    whole = len(x) // LANES
    total = sum_squares(x.ctypes.data, whole) if whole else np.float32(0.0)
    for i in range(whole * LANES, len(x)):
        total += x[i] * x[i]
    return total


@team.compiled
def _rms_norm(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    width = a[WIDTH]
    weight = carray(as_pointer(a[WEIGHT]), (width,), np.float32)
    eps = np.float32(a[EPS] * 2.0**-62)
    while True:
        task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
        if task >= a[team.NUM_TASKS]:
            break
        for row in range(task * a[ROWS_PER_TASK], min(a[ROWS], (task + 1) * a[ROWS_PER_TASK])):
            x = carray(as_pointer(a[X] + 4 * row * a[X_ROW]), (width,), np.float32)
            out = carray(as_pointer(a[OUT] + 4 * row * width), (width,), np.float32)
            scale = np.float32(1.0) / np.sqrt(sum_of_squares(x) / np.float32(width) + eps)
            for i in range(width):
                out[i] = x[i] * scale * weight[i]


@njit(nogil=True, error_model="numpy", inline="always")
def _silu(x):  # noqa: ANN001, ANN202 - compiled
    small = exp32(-abs(x))
    return x * (np.float32(1.0) if x >= np.float32(0.0) else small) / (np.float32(1.0) + small)


@team.compiled
def _silu_gate(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    width = a[WIDTH]
    while True:
        task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
        if task >= a[team.NUM_TASKS]:
            break
        for row in range(task * a[ROWS_PER_TASK], min(a[ROWS], (task + 1) * a[ROWS_PER_TASK])):
            gate = carray(as_pointer(a[X] + 4 * row * a[X_ROW]), (width,), np.float32)
            up = carray(as_pointer(a[X] + 4 * (row * a[X_ROW] + width)), (width,), np.float32)
            out = carray(as_pointer(a[OUT] + 4 * row * width), (width,), np.float32)
            for i in range(width):
                out[i] = _silu(gate[i]) * up[i]


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """X / sqrt(mean(x^2) + eps) * weight, row by row; a new tensor."""
    out_TD = torch.empty(x_TD.shape, dtype=torch.float32)
    _run(_rms_norm, x_TD, weight_D.data_ptr(), out_TD, round(eps * 2**62))
    return out_TD


def silu_gate(gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up for rows that hold the gate's half, then up's; a new tensor of half the width."""
    out_TD = torch.empty((gate_up_TI.shape[0], gate_up_TI.shape[1] // 2), dtype=torch.float32)
    _run(_silu_gate, gate_up_TI, 0, out_TD, 0)
    return out_TD


def _run(kernel: team.Launcher, x: Tensor, weight: int, out_TD: Tensor, eps: int) -> None:
    num_rows, width = out_TD.shape
    assert x.stride(1) == 1, "rows must be dense"
    num_threads, rows_per_task, num_tasks = 1, num_rows, 1
    if num_rows * width >= _WORTH_THREADS:
        num_threads = torch.get_num_threads()
        rows_per_task = -(-num_rows // (4 * num_threads))
        num_tasks = -(-num_rows // rows_per_task)
    args = team.Arguments(NUM_ARGUMENTS)
    args.values[:] = (
        *(0, num_tasks, 0, num_rows, width, x.data_ptr(), x.stride(0)),
        *(weight, out_TD.data_ptr(), eps, rows_per_task),
    )
    kernel.run(args, num_threads)
