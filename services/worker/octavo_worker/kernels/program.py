"""Runs many kernels one after the other in one go: no Python and no start of threads between them.

A program is a table of arguments, one row a stage, and each stage's kernel. Every thread of the team walks through the
stages; within a stage it draws tasks as ever (see `team`), and between two stages all threads meet. What changes from
step to step, such as the number of rows, is in one *frame* that all stages point to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from octavo_worker.kernels import team
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add, intrinsic, njit

# Every kernel of a program has the frame's address here.
FRAME = team.FIRST_ARGUMENT
FIRST_OWN = FRAME + 1
# Of the frame.
ROWS, THREADS = 0, 1
FRAME_VALUES = 16

# The program's own arguments.
_STAGES, _TABLE, _WIDTH, _KERNELS, _MET, _NUM_THREADS, _YIELD = range(team.FIRST_ARGUMENT, team.FIRST_ARGUMENT + 7)
_NUM_ARGUMENTS = team.FIRST_ARGUMENT + 7
# A thread that waits spins so often before it lets others run: two threads on one core would wait for each other.
_SPINS = 4096


@intrinsic
def call_kernel(typingctx: Any, kernel: Any, args: Any) -> Any:
    """Call the C function at an address with the address of its arguments."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _let_run(typingctx: Any, function: Any) -> Any:
    """Call `int sched_yield(void)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def _peek(typingctx: Any, address: Any) -> Any:
    """Read an int64 that other threads write."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@njit(nogil=True)
def _meet(counter, target, let_run):  # noqa: ANN001, ANN202 - compiled
    """Wait until so many arrivals were counted, this one among them."""
    fetch_add(counter, 1)
    spins = 0
    while _peek(counter) < target:
        spins += 1
        if spins >= _SPINS:
            _let_run(let_run)


@team.compiled
def _walk(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    kernels = carray(as_pointer(a[_KERNELS]), (a[_STAGES],), np.int64)
    for stage in range(a[_STAGES]):
        call_kernel(kernels[stage], a[_TABLE] + 8 * stage * a[_WIDTH])
        if a[_NUM_THREADS] > 1:
            _meet(a.ctypes.data + 8 * _MET, (stage + 1) * a[_NUM_THREADS], a[_YIELD])


class Stage:
    """One kernel and its own arguments, those from FIRST_OWN on."""

    __slots__ = ("kernel", "values")

    def __init__(self, kernel: team.Launcher, values: Sequence[int]) -> None:
        self.kernel = kernel
        self.values = tuple(values)


class Program:
    """Stages with a frame. Not for several threads at once."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        width = FIRST_OWN + max(len(stage.values) for stage in stages)
        # A cache line apart: threads draw tasks from one row while others still read the row before.
        self.table = np.zeros((len(stages), -(-width // 8) * 8), np.int64)
        self.frame = np.zeros(FRAME_VALUES, np.int64)
        self._kernels = np.array([stage.kernel.address for stage in stages], np.int64)
        for row, stage in zip(self.table, stages, strict=True):
            row[FRAME] = self.frame.ctypes.data
            row[FIRST_OWN : FIRST_OWN + len(stage.values)] = stage.values
        self._args = team.Arguments(_NUM_ARGUMENTS)
        values = self._args.values
        values[_WIDTH] = self.table.shape[1]
        values[_YIELD] = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0

    def run(self, num_rows: int, num_threads: int, stages: slice | None = None) -> None:
        """Run the stages, or some that follow each other, for so many rows. Releases the interpreter lock meanwhile."""
        first, last, _ = (stages or slice(None)).indices(len(self.table))
        # Whoever is asked for more threads than there are would wait for them for ever.
        num_threads = team.granted(num_threads)
        self.frame[ROWS], self.frame[THREADS] = num_rows, num_threads
        # Counters: tasks drawn, slots drawn, and one that a kernel may use for itself.
        self.table[:, : team.FIRST_ARGUMENT] = 0
        values = self._args.values
        values[_STAGES], values[_TABLE] = last - first, self.table[first:].ctypes.data
        values[_KERNELS] = self._kernels[first:].ctypes.data
        values[_MET], values[_NUM_THREADS], values[team.NUM_TASKS] = 0, num_threads, num_threads
        _walk.run(self._args, num_threads)
