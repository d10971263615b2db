"""How keys, values and queries become bytes, for attention over pages of 16 tokens. Machine code; no tasks, no tables.

One head's part of a page, H head dims:

    keys    [H/4, 16 keys, 4 dims]: bytes 128 + k / s        values  [4, H dims, 4 keys]: bytes v / s

with one scale s a key (or value), s = max |x| / 127: four bytes that one lane multiplies and adds lie together. A query
is an integer of 15 bits, 128 hi + lo with hi and lo in int8, so that a score is two exact integer dot products:
sum (128 hi + lo) k, in int32 for up to 1,024 dims.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.groups import peak, rounded, scaling
from octavo_worker.kernels.integer import Loop, call, constant, fma, int64, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, LANES)
# 127 * 128: a query's largest integer.
_QUERY_MAX = 16256.0


def _peak(builder: Any, values: Any, parts: Any) -> Any:
    """Largest size of so many vectors of 16 floats; NaN if one is NaN."""
    loop = Loop(builder, parts, [ir.Constant(_F32, 0.0)])
    part = load(builder, values, builder.mul(loop.index, int64(64)), _FLOATS)
    mine = builder.bitcast(peak(builder, [part]), _I32)
    so_far = builder.bitcast(loop.carried[0], _I32)
    largest = builder.select(builder.icmp_unsigned(">", mine, so_far), mine, so_far)
    loop.close([builder.bitcast(largest, _F32)])
    return builder.bitcast(largest, _F32)


@intrinsic
def put_head(typingctx: Any, values: Any, head_dim: Any, out: Any, word: Any, byte: Any, flip: Any, scale: Any) -> Any:
    """Quantise a head of a key or value (float32) into a page; writes its scale.

    All int64. Dims d .. d + 3 begin d / 4 * `word` bytes behind `out` and are `byte` bytes apart. `flip` is 128 for
    keys, whose bytes are unsigned, else 0.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        values, out, scale_at = (builder.inttoptr(args[i], pointer) for i in (0, 2, 6))
        parts = builder.udiv(args[1], int64(LANES))
        scale, inverse = scaling(builder, _peak(builder, values, parts), ir.Constant(_F32, 127.0))
        store(builder, scale, scale_at, 0)
        flip = splat(builder, builder.trunc(args[5], _I8))
        loop = Loop(builder, parts, [])
        part = load(builder, values, builder.mul(loop.index, int64(64)), _FLOATS)
        whole = builder.xor(builder.trunc(rounded(builder, part, inverse), _BYTES), flip)
        first = builder.mul(loop.index, int64(LANES // 4))
        for dim in range(LANES):
            at = builder.mul(builder.add(first, int64(dim // 4)), args[3])
            at = builder.add(at, builder.mul(args[4], int64(dim % 4)))
            store(builder, builder.extract_element(whole, ir.Constant(_I32, dim)), out, at)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


@intrinsic
def split_query(typingctx: Any, values: Any, head_dim: Any, high: Any, low: Any, words: Any, factor: Any) -> Any:
    """Quantise a head of a query (float32) into its high and low bytes [head_dim] each.

    `words` takes two: the scale times the factor (float32), and what a score's integer is too large by, with a minus,
    because key bytes are 128 too large: -128 times the sum of the query's integers (int32). int64 but for the factor.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        values, high_at, low_at, words = (builder.inttoptr(args[i], pointer) for i in (0, 2, 3, 4))
        parts = builder.udiv(args[1], int64(LANES))
        scale, inverse = scaling(builder, _peak(builder, values, parts), ir.Constant(_F32, _QUERY_MAX))
        store(builder, builder.fmul(scale, args[5]), words, 0)
        loop = Loop(builder, parts, [constant(_INTS, 0)])
        part = load(builder, values, builder.mul(loop.index, int64(64)), _FLOATS)
        whole = rounded(builder, part, inverse)
        high = builder.ashr(builder.add(whole, constant(_INTS, 64)), constant(_INTS, 7))
        low = builder.sub(whole, builder.shl(high, constant(_INTS, 7)))
        place = builder.mul(loop.index, int64(LANES))
        store(builder, builder.trunc(high, _BYTES), high_at, place)
        store(builder, builder.trunc(low, _BYTES), low_at, place)
        total = builder.add(loop.carried[0], whole)
        loop.close([total])
        counted = call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _I32, [total])
        store(builder, builder.mul(counted, ir.Constant(_I32, -128)), words, 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, types.float32), codegen


def _hadamard_16() -> list[list[float]]:
    """The orthogonal matrix of Sylvester's construction, by rows."""
    rows = [[0.25]]
    while len(rows) < LANES:
        rows = [[*row, *row] for row in rows] + [[*row, *(-x for x in row)] for row in rows]
    return rows


@intrinsic
def mix_16(typingctx: Any, values: Any) -> Any:
    """Multiply 16 float32 at an address by the orthogonal Hadamard matrix, in place."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _I8.as_pointer())
        total = constant(_FLOATS, 0.0)
        for place, row in enumerate(_hadamard_16()):
            value = splat(builder, load(builder, base, 4 * place, _F32))
            total = fma(builder, value, ir.Constant(_FLOATS, row), total)
        store(builder, total, base, 0)
        return context.get_dummy_value()

    return types.void(types.int64), codegen
