"""Pieces of bfloat16 arithmetic for numba kernels: rounding, and dot products with float32 sums in one fixed order.

The order is that of the processor's matrix unit (Intel's `tdpbf16ps`). 32 inputs are a group; its 16 even products are
added by fused multiply-adds from zero, so are its 16 odd ones, and the sum of the two sums goes to the result:

    even = fma(w[0], x[0], 0), fma(w[2], x[2], even), ...    odd = fma(w[1], x[1], 0), ...    result += even + odd

with subnormal numbers taken for zero. Vector instructions do the same on widened values, so the numbers are the same in
any company and on any x86-64 processor; `vdpbf16ps`, which adds pairs one after the other, would give others. On other
processors subnormals stay what they are: `flush_subnormals` knows no way there.

Weights lie in tiles of 16 outputs, group after group: row k of a group holds inputs 2k and 2k + 1 for each of the 16
outputs, 64 bytes.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.integer import (
    GROUP,
    Format,
    Loop,
    call,
    constant,
    fma,
    int64,
    load,
    put_results,
    splat,
    store,
)
from octavo_worker.kernels.vector import LANES, intrinsic

GROUP_BYTES = 2 * GROUP * LANES
_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_INTS, _FLOATS, _SHORTS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES), ir.VectorType(_I16, LANES)
_HIGH = 0xFFFF0000
# Of the processor's control word: results that are subnormal become 0, and so do operands.
_FLUSH = 0x8040


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain(Format):
    """Numbers without scales."""

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 outputs' groups."""
        return GROUP_BYTES


BFLOAT16 = _Plain(name="bfloat16", bits=16, zero=0, has_minima=False)


class Short(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Short)

    def __hash__(self) -> int:
        return hash(Short)


def rounded_bits(builder: Any, values: Any) -> Any:
    """The bits of 16 floats rounded to bfloat16, ties to even, as <16 x i16>; subnormal ones become 0."""
    size = builder.and_(builder.bitcast(values, _INTS), constant(_INTS, 0x7FFFFFFF))
    tiny = builder.icmp_unsigned("<", size, constant(_INTS, 0x00800000))
    values = builder.select(tiny, constant(_FLOATS, 0.0), values)
    return builder.bitcast(builder.fptrunc(values, ir.VectorType(Short(), LANES)), _SHORTS)


def widened(builder: Any, bits: Any) -> Any:
    """The floats that 16 bfloat16 stand for."""
    return builder.bitcast(builder.shl(builder.zext(bits, _INTS), constant(_INTS, 16)), _FLOATS)


def halves(builder: Any, pairs: Any) -> tuple[Any, Any]:
    """The floats in the low and in the high halves of 16 pairs."""
    low = builder.shl(pairs, constant(_INTS, 16))
    return builder.bitcast(low, _FLOATS), builder.bitcast(builder.and_(pairs, constant(_INTS, _HIGH)), _FLOATS)


@intrinsic
def flush_subnormals(typingctx: Any) -> Any:
    """Make this thread's arithmetic take subnormal numbers for zero; returns what `keep_subnormals` wants."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() != "x86_64":
            return int64(0)
        place = cgutils.alloca_once(builder, _I32)
        pointer = builder.bitcast(place, _I8.as_pointer())
        call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [pointer])
        before = builder.load(place)
        builder.store(builder.or_(before, ir.Constant(_I32, _FLUSH)), place)
        call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [pointer])
        return builder.zext(before, _I64)

    return types.int64(), codegen


@intrinsic
def keep_subnormals(typingctx: Any, before: Any) -> Any:
    """Undo `flush_subnormals`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":
            place = cgutils.alloca_once(builder, _I32)
            builder.store(builder.trunc(args[0], _I32), place)
            call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [builder.bitcast(place, _I8.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def short_at(typingctx: Any, address: Any) -> Any:
    """The bfloat16 at an address, as float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = load(builder, builder.inttoptr(args[0], _I8.as_pointer()), 0, _I16)
        return builder.bitcast(builder.shl(builder.zext(bits, _I32), ir.Constant(_I32, 16)), _F32)

    return types.float32(types.int64), codegen


@intrinsic
def round_row(typingctx: Any, values: Any, width: Any, floats: Any, shorts: Any) -> Any:
    """Round so many float32, a multiple of 16: to floats (at the same address, if that is wanted), and to bfloat16."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, floats, shorts = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2, 3))
        loop = Loop(builder, builder.udiv(args[1], int64(LANES)), [])
        at, half = (builder.mul(loop.index, int64(size * LANES)) for size in (4, 2))
        bits = rounded_bits(builder, load(builder, values, at, _FLOATS))
        store(builder, bits, shorts, half)
        store(builder, widened(builder, bits), floats, at)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def dot_pairs(builder: Any, rows: list[Any], lines: list[Any], at: Any) -> list[Any]:
    """Even sum + odd sum of some lines of pairs with each row of float32, `at` bytes behind its pointer."""
    zero = constant(_FLOATS, 0.0)
    sums = [[zero, zero] for _ in rows]
    for k, line in enumerate(lines):
        weights = halves(builder, line)
        for row, mine in zip(rows, sums, strict=True):
            place = builder.gep(row, [at])
            for half in range(2):
                value = splat(builder, load(builder, place, 8 * k + 4 * half, _F32))
                mine[half] = fma(builder, weights[half], value, mine[half])
    return [builder.fadd(*mine) for mine in sums]


def make_dot_rows(num_rows: int) -> Any:
    """An intrinsic for one tile and so many rows.

    `(weights, floats, num_inputs, out, out_stride, adds)`, all int64: addresses, numbers of elements, and whether `out`
    (float32 [rows, 16], rows `out_stride` apart) is added to or written. Rows of `floats` hold rounded values.
    """

    @intrinsic
    def dot_rows(typingctx: Any, weights: Any, floats: Any, num_inputs: Any, out: Any, stride: Any, adds: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, floats, out = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 1, 3))
            row_bytes = builder.mul(args[2], int64(4))
            rows = [builder.gep(floats, [builder.mul(row_bytes, int64(i))]) for i in range(num_rows)]
            num_groups = builder.udiv(args[2], int64(GROUP))
            loop = Loop(builder, num_groups, [constant(_FLOATS, 0.0)] * num_rows)
            base = builder.gep(weights, [builder.mul(loop.index, int64(GROUP_BYTES))])
            lines = [load(builder, base, 64 * k, _INTS) for k in range(GROUP // 2)]
            at = builder.mul(loop.index, int64(4 * GROUP))
            sums = dot_pairs(builder, rows, lines, at)
            grown = [builder.fadd(total, new) for total, new in zip(loop.carried, sums, strict=True)]
            loop.close(grown)
            put_results(builder, grown, out, args[4], args[5])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return dot_rows
