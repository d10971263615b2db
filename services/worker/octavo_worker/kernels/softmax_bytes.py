"""Softmax over scores of int8 keys, with weights that are integers again: pieces of machine code.

Keys come in pages of 16, pages in chunks of 4. A query's scores are float32, page after page; their place is then taken
by its weights, unsigned integers of 16 bits (of 2 bits less for each doubling of KEYS_A_SUM keys): of each chunk the 64
high halves, then the 64 low ones. The largest weight, times its value's scale, is the largest integer.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.groups import peak, scaling
from octavo_worker.kernels.integer import Loop, call, constant, fma, int64, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

PAGES_A_CHUNK = 4
# Keys of a chunk.
CHUNK = PAGES_A_CHUNK * LANES
# Most keys that a sum of products of bytes may have in int32: 255 * 127 * 66,311 < 2**31.
KEYS_A_SUM = 65_536
_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, LANES)
LOG2E = 1.4426950408889634
# 2 ** r for |r| <= 1/2 to 2e-7: Cephes' exp2f, the last coefficient first.
_EXP2 = (
    *(1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2),
    *(2.402264791363012e-1, 6.931472028550421e-1, 1.0),
)


def finish_scores(builder: Any, high: Any, low: Any, words: Any, query: int, key_scales: Any) -> Any:
    """Scores from the two dot products of a query with 16 keys, to base 2."""
    whole = builder.add(builder.shl(high, constant(_INTS, 7)), low)
    whole = builder.add(whole, splat(builder, load(builder, words, 8 * query + 4, _I32)))
    scale = builder.fmul(key_scales, splat(builder, load(builder, words, 8 * query, _F32)))
    return builder.fmul(builder.sitofp(whole, _FLOATS), scale)


def exp2(builder: Any, x: Any) -> Any:
    """2 ** x of a vector, x <= 0. Below -125 it stays at 1e-38; NaN stays NaN."""
    lowest = constant(_FLOATS, -125.0)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    n = call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, [x])
    r = builder.fsub(x, n)
    p = constant(_FLOATS, _EXP2[0])
    for factor in _EXP2[1:]:
        p = fma(builder, p, r, constant(_FLOATS, factor))
    power = builder.shl(builder.fptosi(n, _INTS), constant(_INTS, 23))
    return builder.bitcast(builder.add(builder.bitcast(p, _INTS), power), _FLOATS)


def seen_keys(builder: Any, loop: Loop, first: Any, limit: Any) -> tuple[Any, Any]:
    """Of a loop over pages: place of a page's scores, and which of its keys lie in [first, limit), both vectors."""
    start = splat(builder, builder.trunc(builder.mul(loop.index, int64(LANES)), _I32))
    keys = builder.add(start, ir.Constant(_INTS, list(range(LANES))))
    seen = builder.and_(builder.icmp_signed(">=", keys, first), builder.icmp_signed("<", keys, limit))
    return builder.mul(loop.index, int64(64)), seen


def largest_score(builder: Any, base: Any, num_pages: Any, first: Any, limit: Any) -> Any:
    """The largest score of the keys [first, limit), in all lanes; NaN if one is NaN."""
    lowest = constant(_FLOATS, float("-inf"))
    loop = Loop(builder, num_pages, [lowest])
    at, seen = seen_keys(builder, loop, first, limit)
    larger = larger_of(builder, loop.carried[0], builder.select(seen, load(builder, base, at, _FLOATS), lowest))
    loop.close([larger])
    return splat(builder, tree(builder, larger, lambda a, b: larger_of(builder, a, b)))


@intrinsic
def weigh(
    typingctx: Any, scores: Any, scales: Any, first: Any, limit: Any, num_chunks: Any, bits: Any, words: Any
) -> Any:
    """Turn scores of the keys [first, limit) into weights, others into 0.

    int64: the addresses of the scores and of the values' scales (float32 [CHUNK * num_chunks] each), positions counted
    from them; `bits` are those of half an integer. `words` takes two float32: what a unit of the integers
    is worth, and the sum of the weights without their values' scales. Its 16 lanes, by position, are added in a tree:
    its order is fixed by the positions. A score that is NaN, or a scale, makes the unit NaN.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base, scales, words = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 1, 6))
        first, limit = (splat(builder, builder.trunc(args[i], _I32)) for i in (2, 3))
        zero = constant(_FLOATS, 0.0)
        num_pages = builder.mul(args[4], int64(PAGES_A_CHUNK))
        top = largest_score(builder, base, num_pages, first, limit)
        loop = Loop(builder, num_pages, [zero, constant(_INTS, 0)])
        at, seen = seen_keys(builder, loop, first, limit)
        weight = exp2(builder, builder.fsub(load(builder, base, at, _FLOATS), top))
        # What lies in a slot never written counts for nothing.
        weight = builder.select(seen, weight, zero)
        scaled = builder.select(seen, builder.fmul(weight, load(builder, scales, at, _FLOATS)), zero)
        store(builder, scaled, base, at)
        total = builder.fadd(loop.carried[0], weight)
        # None is negative, so they compare like their bits, and NaN is the largest.
        bits, so_far = builder.bitcast(scaled, _INTS), loop.carried[1]
        most = builder.select(builder.icmp_unsigned(">", bits, so_far), bits, so_far)
        loop.close([total, most])
        all_bits = builder.shl(int64(1), builder.mul(args[5], int64(2)))
        largest = builder.sitofp(builder.sub(all_bits, int64(1)), _F32)
        unit, inverse = scaling(builder, peak(builder, [builder.bitcast(most, _FLOATS)]), largest)
        store(builder, unit, words, 0)
        store(builder, tree(builder, total, builder.fadd), words, 4)
        _to_bytes(builder, base, args[4], splat(builder, inverse), splat(builder, builder.trunc(args[5], _I32)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


def _to_bytes(builder: Any, base: Any, num_chunks: Any, inverse: Any, bits: Any) -> None:
    """Weights times `inverse` as integers, high halves and low ones; a chunk is read before its bytes are written."""
    loop = Loop(builder, num_chunks, [])
    read = builder.gep(base, [builder.mul(loop.index, int64(4 * CHUNK))])
    write = builder.gep(base, [builder.mul(loop.index, int64(2 * CHUNK))])
    wholes: list[Any] = []
    for page in range(PAGES_A_CHUNK):
        part = builder.fmul(load(builder, read, 64 * page, _FLOATS), inverse)
        wholes.append(builder.fptosi(call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, [part]), _INTS))
    mask = builder.sub(builder.shl(constant(_INTS, 1), bits), constant(_INTS, 1))
    for page, whole in enumerate(wholes):
        store(builder, builder.trunc(builder.lshr(whole, bits), _BYTES), write, LANES * page)
        store(builder, builder.trunc(builder.and_(whole, mask), _BYTES), write, CHUNK + LANES * page)
    loop.close([])


def larger_of(builder: Any, a: Any, b: Any) -> Any:
    """The larger lanes; b where it is NaN."""
    return builder.select(builder.fcmp_ordered("<=", b, a), a, b)


def tree(builder: Any, vector: Any, join: Any) -> Any:
    """Join the lanes of a vector two by two: lane i with lane i + 8, then i + 4, ..."""
    width = LANES // 2
    while width:
        lanes = [(i + width) % LANES for i in range(LANES)]
        order = ir.Constant(ir.VectorType(_I32, LANES), lanes)
        vector = join(vector, builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order))
        width //= 2
    return builder.extract_element(vector, ir.Constant(_I32, 0))
