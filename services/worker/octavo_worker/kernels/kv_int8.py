"""Vector pieces of attention over int8 keys and values in pages of 16 tokens. Machine code only; no tasks, no tables.

One head's part of a page, H head dims:

    keys    H/4 vectors of 16 lanes, one a key, four dims each: bytes 128 + k / s     values  16 rows of H bytes: v / s

with one scale s a key (or value), s = max |x| / 127. A query is an integer of 15 bits, 128 hi + lo with hi and lo in
int8, so that a score is two exact integer dot products: sum (128 hi + lo) k, in int32 for up to 1,024 dims.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.integer import (
    Loop,
    call,
    constant,
    dot4,
    exp,
    load,
    peak,
    prefetch,
    rounded,
    scaling,
    splat,
    store,
)
from octavo_worker.kernels.vector import LANES, intrinsic

PAGE = 16
_F32, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, LANES)
# 127 * 128: a query's largest integer.
_QUERY_MAX = 16256.0


def _integer(value: int) -> Any:
    return ir.Constant(_I64, value)


def _peak(builder: Any, values: Any, parts: Any) -> Any:
    """Largest size of so many vectors of 16 floats; NaN if one is NaN."""
    loop = Loop(builder, parts, [ir.Constant(_F32, 0.0)])
    part = load(builder, values, builder.mul(loop.index, _integer(64)), _FLOATS)
    mine = builder.bitcast(peak(builder, [part]), _I32)
    so_far = builder.bitcast(loop.carried[0], _I32)
    largest = builder.select(builder.icmp_unsigned(">", mine, so_far), mine, so_far)
    loop.close([builder.bitcast(largest, _F32)])
    return builder.bitcast(largest, _F32)


@intrinsic
def put_head(typingctx: Any, values: Any, head_dim: Any, out: Any, step: Any, flip: Any, scale: Any) -> Any:
    """Quantise a head of a key or value (float32) into words of four bytes, `step` bytes apart; writes its scale.

    `flip` is 128 for keys, whose bytes are unsigned, else 0. All int64.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        values, out, scale_at = (builder.inttoptr(args[i], pointer) for i in (0, 2, 5))
        parts = builder.udiv(args[1], _integer(LANES))
        scale, inverse = scaling(builder, _peak(builder, values, parts), 127.0)
        store(builder, scale, scale_at, 0)
        flip = splat(builder, builder.trunc(args[4], _I8))
        loop = Loop(builder, parts, [])
        part = load(builder, values, builder.mul(loop.index, _integer(64)), _FLOATS)
        whole = builder.xor(builder.trunc(rounded(builder, part, inverse), _BYTES), flip)
        words = builder.bitcast(whole, ir.VectorType(_I32, 4))
        first = builder.mul(loop.index, _integer(4))
        for word in range(4):
            at = builder.mul(builder.add(first, _integer(word)), args[3])
            store(builder, builder.extract_element(words, ir.Constant(_I32, word)), out, at)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


@intrinsic
def split_query(typingctx: Any, values: Any, head_dim: Any, high: Any, low: Any, head: Any) -> Any:
    """Quantise a head of a query (float32) into its high and low bytes [head_dim] each.

    `head` takes three words: the scale (float32), and what the two dot products start from because key bytes are 128
    too large: -128 times the sum of the high bytes, and of the low ones (int32). All int64.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        values, high_at, low_at, head = (builder.inttoptr(args[i], pointer) for i in (0, 2, 3, 4))
        parts = builder.udiv(args[1], _integer(LANES))
        scale, inverse = scaling(builder, _peak(builder, values, parts), _QUERY_MAX)
        store(builder, scale, head, 0)
        loop = Loop(builder, parts, [constant(_INTS, 0)] * 2)
        part = load(builder, values, builder.mul(loop.index, _integer(64)), _FLOATS)
        whole = rounded(builder, part, inverse)
        high = builder.ashr(builder.add(whole, constant(_INTS, 64)), constant(_INTS, 7))
        low = builder.sub(whole, builder.shl(high, constant(_INTS, 7)))
        place = builder.mul(loop.index, _integer(LANES))
        store(builder, builder.trunc(high, _BYTES), high_at, place)
        store(builder, builder.trunc(low, _BYTES), low_at, place)
        totals = [builder.add(loop.carried[0], high), builder.add(loop.carried[1], low)]
        loop.close(totals)
        for word, total in enumerate(totals, 1):
            counted = call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _I32, [total])
            store(builder, builder.mul(counted, ir.Constant(_I32, -128)), head, 4 * word)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


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
            total = call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, [value, ir.Constant(_FLOATS, row), total])
        store(builder, total, base, 0)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def make_score_page(num_queries: int) -> Any:
    """An intrinsic for so many queries of one head: their scores with the 16 keys of a page.

    `(queries, query_bytes, heads, head_dim, keys, scales, scores, scores_bytes, ahead, factor)`, int64 but for the
    factor: high bytes of a query are followed by its low ones, queries are query_bytes apart; `heads` three words each;
    scores (float32 [16]) of a query are scores_bytes from the next one's. `ahead` is a page's part that will be needed
    soon.
    """

    @intrinsic
    def score_page(
        typingctx: Any, queries: Any, query_bytes: Any, heads: Any, head_dim: Any, keys: Any, scales: Any, scores: Any,
        scores_bytes: Any, ahead: Any, factor: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _I8.as_pointer()
            places = (0, 2, 4, 5, 6, 8)
            queries, heads, keys, scales, scores, ahead = (builder.inttoptr(args[i], pointer) for i in places)
            rows = [builder.gep(queries, [builder.mul(args[1], _integer(i))]) for i in range(num_queries)]
            starts = [
                splat(builder, load(builder, heads, 12 * i + 4 * word, _I32))
                for i in range(num_queries)
                for word in (1, 2)
            ]
            loop = Loop(builder, builder.udiv(args[3], _integer(4)), starts)
            line = builder.mul(loop.index, _integer(64))
            vector = load(builder, keys, line, _INTS)
            prefetch(builder, ahead, line)
            at = builder.mul(loop.index, _integer(4))
            grown: list[Any] = []
            for i, row in enumerate(rows):
                for half, place in enumerate((at, builder.add(at, args[3]))):
                    word = splat(builder, load(builder, row, place, _I32))
                    grown.append(dot4(builder, loop.carried[2 * i + half], vector, word))
            loop.close(grown)
            key_scales = load(builder, scales, 0, _FLOATS)
            for i in range(num_queries):
                whole = builder.add(builder.shl(grown[2 * i], constant(_INTS, 7)), grown[2 * i + 1])
                scale = builder.fmul(load(builder, heads, 12 * i, _F32), args[9])
                scaled = builder.fmul(key_scales, splat(builder, scale))
                result = builder.fmul(builder.sitofp(whole, _FLOATS), scaled)
                store(builder, result, scores, builder.mul(args[7], _integer(i)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, types.float32), codegen

    return score_page


@intrinsic
def weigh(typingctx: Any, scores: Any, first: Any, limit: Any, num_vectors: Any) -> Any:
    """Turn scores of the keys [first, limit) into unnormalised softmax weights, others to 0; returns their sum.

    int64: the address of 16 * num_vectors float32, and positions counted from it. The sum has 16 lanes, by position,
    which are added in a tree: its order is fixed by the positions. A score that is NaN makes all weights NaN.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _I8.as_pointer())
        first, limit = (splat(builder, builder.trunc(args[i], _I32)) for i in (1, 2))
        lowest, zero = constant(_FLOATS, float("-inf")), constant(_FLOATS, 0.0)

        def place(loop: Loop) -> tuple[Any, Any]:
            start = splat(builder, builder.trunc(builder.mul(loop.index, _integer(LANES)), _I32))
            keys = builder.add(start, ir.Constant(_INTS, list(range(LANES))))
            seen = builder.and_(builder.icmp_signed(">=", keys, first), builder.icmp_signed("<", keys, limit))
            return builder.mul(loop.index, _integer(64)), seen

        loop = Loop(builder, args[3], [lowest])
        at, seen = place(loop)
        part = builder.select(seen, load(builder, base, at, _FLOATS), lowest)
        larger = _larger(builder, loop.carried[0], part)
        loop.close([larger])
        top = splat(
            builder, _tree(builder, larger, lambda a, b: builder.select(builder.fcmp_ordered("<=", b, a), a, b))
        )
        loop = Loop(builder, args[3], [zero])
        at, seen = place(loop)
        weight = exp(builder, builder.fsub(load(builder, base, at, _FLOATS), top))
        weight = builder.select(seen, weight, zero)
        store(builder, weight, base, at)
        total = builder.fadd(loop.carried[0], weight)
        loop.close([total])
        return _tree(builder, total, builder.fadd)

    return types.float32(*[types.int64] * 4), codegen


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger lanes; b where it is NaN."""
    return builder.select(builder.fcmp_ordered("<=", b, a), a, b)


def _tree(builder: Any, vector: Any, join: Any) -> Any:
    """Join the lanes of a vector two by two: lane i with lane i + 8, then i + 4, ..."""
    width = LANES // 2
    while width:
        lanes = [(i + width) % LANES for i in range(LANES)]
        order = ir.Constant(ir.VectorType(_I32, LANES), lanes)
        vector = join(vector, builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order))
        width //= 2
    return builder.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic
def scale_weights(typingctx: Any, weights: Any, scales: Any) -> Any:
    """Multiply the weights of a page by its values' scales; 0 stays 0 whatever lies in a slot never written."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, scales = (builder.inttoptr(arg, _I8.as_pointer()) for arg in args)
        weight, zero = load(builder, weights, 0, _FLOATS), constant(_FLOATS, 0.0)
        scaled = builder.fmul(weight, load(builder, scales, 0, _FLOATS))
        store(builder, builder.select(builder.fcmp_ordered("==", weight, zero), zero, scaled), weights, 0)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 2), codegen


def make_add_page(num_queries: int, num_parts: int) -> Any:
    """An intrinsic for so many queries of one head and 16 * num_parts of its columns.

    `(weights, weights_bytes, values, head_dim, out, out_bytes, ahead)`, all int64: out[d] += sum over the page's keys,
    in rising order, of weights[key] * values[key, d]. Weights (float32 [16]) hold the values' scales already.
    """

    @intrinsic
    def add_page(
        typingctx: Any,
        weights: Any,
        weights_bytes: Any,
        values: Any,
        head_dim: Any,
        out: Any,
        out_bytes: Any,
        ahead: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _I8.as_pointer()
            weights, values, out, ahead = (builder.inttoptr(args[i], pointer) for i in (0, 2, 4, 6))
            rows = [builder.gep(weights, [builder.mul(args[1], _integer(i))]) for i in range(num_queries)]
            outs = [builder.gep(out, [builder.mul(args[5], _integer(i))]) for i in range(num_queries)]
            starts = [load(builder, place, 64 * part, _FLOATS) for place in outs for part in range(num_parts)]
            loop = Loop(builder, _integer(PAGE), starts)
            base = builder.mul(loop.index, args[3])
            prefetch(builder, ahead, base)
            columns = [
                builder.sitofp(load(builder, values, builder.add(base, _integer(LANES * part)), _BYTES), _FLOATS)
                for part in range(num_parts)
            ]
            place = builder.mul(loop.index, _integer(4))
            grown: list[Any] = []
            for i, row in enumerate(rows):
                weight = splat(builder, load(builder, row, place, _F32))
                for part, column in enumerate(columns):
                    total = loop.carried[i * num_parts + part]
                    grown.append(call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, [weight, column, total]))
            loop.close(grown)
            for i, target in enumerate(outs):
                for part in range(num_parts):
                    store(builder, grown[i * num_parts + part], target, 64 * part)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return add_page
