"""Pieces for numba kernels that Python cannot say: typed views of addresses, an atomic counter, 16-lane vector loops.

A vector of 16 floats is written out in LLVM's own terms because the order of every sum is then the one we wrote:
a loop vectoriser may choose another order for another length, and a row's result must not depend on its neighbours.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

# numba's decorators change signatures in ways that types cannot say.
intrinsic: Any = numba.extending.intrinsic
njit: Any = numba.njit
carray: Any = numba.carray  # pyright: ignore[reportPrivateImportUsage] - exported, but not by name

LANES = 16
_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VEC = ir.VectorType(_F32, LANES)


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """An int64 address as a void pointer, for `carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@intrinsic
def fetch_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address, atomically; returns the value before. Orders all other reads and writes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _float_bits(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), codegen


@intrinsic
def _bits_float(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


_MAGIC = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer, held in the low bits
_MAGIC_BITS = np.int32(0x4B400000)
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LOWEST = np.float32(-87.0)


@njit(nogil=True, inline="always")
def exp32(x: Any) -> Any:
    """e**x for x <= 0 in float32, to 2 ulp; flushes to about 1e-38 below -87, and keeps NaN.

    No fast-math here: the rounding trick needs the operations as written.
    """
    x = _LOWEST if x < _LOWEST else x
    shifted = x * _LOG2E + _MAGIC
    n = shifted - _MAGIC
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + r + np.float32(1.0)
    return p * _bits_float(((_float_bits(shifted) - _MAGIC_BITS) + np.int32(127)) << np.int32(23))


def _loop(builder: Any, count: Any, name: str) -> tuple[Any, Any, Any, Any]:
    """Open a loop `for i in range(count)` (count >= 1); returns (i, body, after, entry)."""
    entry = builder.block
    body = builder.append_basic_block(name)
    after = builder.append_basic_block(name + ".end")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(_I64)
    index.add_incoming(ir.Constant(_I64, 0), entry)
    return index, body, after, entry


def _close(builder: Any, index: Any, count: Any, after: Any, body: Any) -> None:
    following = builder.add(index, ir.Constant(_I64, 1))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)


def _splat(builder: Any, scalar: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VEC, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(_VEC, ir.Undefined), ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    )


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_VEC, [_VEC, _VEC, _VEC])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32"), [a, b, c])


def _load(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    pointer = builder.gep(base, [offset])
    if kind is _VEC:
        pointer = builder.bitcast(pointer, _VEC.as_pointer())
    load = builder.load(pointer, typ=kind)
    load.align = 4
    return load


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    pointer = builder.bitcast(builder.gep(base, [offset]), _VEC.as_pointer())
    builder.store(value, pointer).align = 4


def _prefetch(builder: Any, base: Any, offset: Any) -> None:
    """Ask for the cache line of a float; harmless wherever it points."""
    pointer = builder.bitcast(builder.gep(base, [offset]), ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(call, [pointer, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])


@intrinsic
def sum_squares(typingctx: Any, address: Any, num_vectors: Any) -> Any:
    """Sum of the squares of 16 float32 times ``num_vectors`` (at least 1) at an address, in an order of its own.

    Lane by lane by fused multiply-adds, then lanes 8, 4, 2 and 1 apart: the same bits on every processor, where a loop
    that LLVM may reorder is cut as wide as it likes for the processor at hand.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _F32.as_pointer())
        index, body, after, entry = _loop(builder, args[1], "squares")
        total = builder.phi(_VEC)
        total.add_incoming(ir.Constant(_VEC, [0.0] * LANES), entry)
        part = _load(builder, base, builder.mul(index, ir.Constant(_I64, LANES)), _VEC)
        kind = ir.FunctionType(_VEC, [_VEC, _VEC, _VEC])
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        grown = builder.call(fma, [part, part, total])
        total.add_incoming(grown, body)
        _close(builder, index, args[1], after, body)
        for distance in (8, 4, 2, 1):
            order = ir.Constant(ir.VectorType(_I32, LANES), [lane ^ distance for lane in range(LANES)])
            grown = builder.fadd(grown, builder.shuffle_vector(grown, grown, order))
        return builder.extract_element(grown, ir.Constant(_I32, 0))

    return types.float32(types.int64, types.int64), codegen


_KEYS_AT_ONCE = 8


@intrinsic
def score_keys(
    typingctx: Any, queries: Any, keys: Any, key_stride: Any, num_keys: Any, head_dim: Any, scores: Any, ahead: Any
) -> Any:
    """scores[s, lane] = sum over d, in rising order, of queries[d, lane] * keys[s * key_stride + d].

    All int64: addresses of float32 (`queries` [head_dim, 16], `scores` [num_keys, 16]) and counts. num_keys must be a
    multiple of 8; what lies behind the last true key must be readable, its scores are to be masked by the caller.
    `ahead` is where num_keys * head_dim floats begin that will be needed soon: their lines are asked for between the
    products, because a burst of requests would block the loads, and in order, so that the hardware joins in.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _F32.as_pointer()
        queries, keys, scores, ahead = (builder.inttoptr(args[i], pointer) for i in (0, 1, 5, 6))
        stride, num_keys, head_dim = args[2], args[3], args[4]
        num_groups = builder.udiv(num_keys, ir.Constant(_I64, _KEYS_AT_ONCE))
        group, outer, outer_end, _ = _loop(builder, num_groups, "keys")
        first = builder.mul(group, ir.Constant(_I64, _KEYS_AT_ONCE))
        rows = [
            builder.gep(keys, [builder.mul(builder.add(first, ir.Constant(_I64, i)), stride)])
            for i in range(_KEYS_AT_ONCE)
        ]
        d, inner, inner_end, entry = _loop(builder, head_dim, "dims")
        zero = ir.Constant(_VEC, [0.0] * LANES)
        sums = [builder.phi(_VEC) for _ in rows]
        for total in sums:
            total.add_incoming(zero, entry)
        q = _load(builder, queries, builder.mul(d, ir.Constant(_I64, LANES)), _VEC)
        step = builder.add(builder.mul(group, head_dim), d)
        _prefetch(builder, ahead, builder.mul(step, ir.Constant(_I64, _KEYS_AT_ONCE)))
        grown = [
            _fma(builder, q, _splat(builder, _load(builder, row, d, _F32)), total)
            for row, total in zip(rows, sums, strict=True)
        ]
        for total, new in zip(sums, grown, strict=True):
            total.add_incoming(new, builder.block)
        _close(builder, d, head_dim, inner_end, inner)
        for i, total in enumerate(grown):
            row = builder.mul(builder.add(first, ir.Constant(_I64, i)), ir.Constant(_I64, LANES))
            _store(builder, total, scores, row)
        _close(builder, group, num_groups, outer_end, outer)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


def _values_intrinsic(num_parts_at_once: int) -> Any:
    @intrinsic
    def add_values(
        typingctx: Any,
        weights: Any,
        values: Any,
        value_stride: Any,
        num_keys: Any,
        num_parts: Any,
        out: Any,
        ahead: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _F32.as_pointer()
            weights, values, out, ahead = (builder.inttoptr(args[i], pointer) for i in (0, 1, 5, 6))
            stride, num_keys, num_parts = args[2], args[3], args[4]
            width = builder.mul(num_parts, ir.Constant(_I64, LANES))
            num_groups = builder.udiv(num_parts, ir.Constant(_I64, num_parts_at_once))
            group, outer, outer_end, _ = _loop(builder, num_groups, "parts")
            first = builder.mul(group, ir.Constant(_I64, LANES * num_parts_at_once))
            columns = [builder.add(first, ir.Constant(_I64, LANES * i)) for i in range(num_parts_at_once)]
            outs = [out, builder.gep(out, [width])]
            starts = [[_load(builder, row, column, _VEC) for column in columns] for row in outs]
            s, inner, inner_end, entry = _loop(builder, num_keys, "keys")
            totals = [[builder.phi(_VEC) for _ in columns] for _ in outs]
            for row, start in zip(totals, starts, strict=True):
                for total, value in zip(row, start, strict=True):
                    total.add_incoming(value, entry)
            at = builder.mul(s, ir.Constant(_I64, LANES))
            lane_weights = [
                _splat(builder, _load(builder, weights, builder.add(at, ir.Constant(_I64, lane)), _F32))
                for lane in range(2)
            ]
            base = builder.mul(s, stride)
            row_values = [_load(builder, values, builder.add(base, column), _VEC) for column in columns]
            for column in columns:
                _prefetch(builder, ahead, builder.add(builder.mul(s, width), column))
            grown = [
                [_fma(builder, weight, value, total) for value, total in zip(row_values, row, strict=True)]
                for weight, row in zip(lane_weights, totals, strict=True)
            ]
            for row, news in zip(totals, grown, strict=True):
                for total, new in zip(row, news, strict=True):
                    total.add_incoming(new, builder.block)
            _close(builder, s, num_keys, inner_end, inner)
            for target, news in zip(outs, grown, strict=True):
                for column, new in zip(columns, news, strict=True):
                    _store(builder, new, target, column)
            _close(builder, group, num_groups, outer_end, outer)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return add_values


# For two neighbouring lanes j = 0, 1 and all 16 * num_parts columns of a head:
#   out[j, d] += sum over s, in rising order, of weights[16 * s + j] * values[s * value_stride + d]
# All arguments int64: addresses of float32, and counts; `ahead` as above. The first form wants num_parts to be a
# multiple of 4.
add_values_by_4 = _values_intrinsic(4)
add_values_by_1 = _values_intrinsic(1)
