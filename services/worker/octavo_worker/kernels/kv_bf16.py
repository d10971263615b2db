"""Keys, values and queries in bfloat16, and softmax over their scores: pieces of attention over pages of 16 tokens.

One head's part of a page, H head dims, 32 H bytes each:

    keys    [H/2, 16 keys, 2 dims]          values  [8, H dims, 2 keys]

so that what one lane multiplies and adds lies together, as `bfloat16` wants it: for scores the dims of a head are its
inputs, for results the 16 keys of a page are half a group. Machine code only; no tasks, no tables.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.attention_frame import PAGE
from octavo_worker.kernels.bfloat16 import dot_pairs, rounded_bits, widened
from octavo_worker.kernels.integer import Loop, constant, int64, load, prefetch, splat, store
from octavo_worker.kernels.softmax_bytes import exp2, largest_score, seen_keys, tree
from octavo_worker.kernels.vector import LANES, intrinsic

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)


@intrinsic
def put_key(typingctx: Any, values: Any, head_dim: Any, keys: Any) -> Any:
    """Round a head of a key (float32) into its place, `keys` being that of the page's part plus 4 bytes a key."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, keys = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2))
        loop = Loop(builder, builder.udiv(args[1], int64(LANES)), [])
        bits = rounded_bits(builder, load(builder, values, builder.mul(loop.index, int64(64)), _FLOATS))
        pairs = builder.bitcast(bits, ir.VectorType(_I32, LANES // 2))
        first = builder.mul(loop.index, int64(64 * LANES // 2))
        for pair in range(LANES // 2):
            at = builder.add(first, int64(64 * pair))
            store(builder, builder.extract_element(pairs, ir.Constant(_I32, pair)), keys, at)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def put_value(typingctx: Any, values: Any, head_dim: Any, to: Any) -> Any:
    """Round a head of a value (float32) into every second bfloat16 from `to` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, to = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2))
        loop = Loop(builder, builder.udiv(args[1], int64(LANES)), [])
        at = builder.mul(loop.index, int64(64))
        bits = rounded_bits(builder, load(builder, values, at, _FLOATS))
        for lane in range(LANES):
            place = builder.add(at, int64(4 * lane))
            store(builder, builder.extract_element(bits, ir.Constant(_I32, lane)), to, place)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def copy_values(typingctx: Any, values: Any, head_dim: Any, num_keys: Any, to: Any) -> Any:
    """Copy a page's values with zeros for all but its first keys: what was never written must not be multiplied."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, to = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 3))
        keys = builder.trunc(args[2], _I32)
        row_bytes = builder.mul(args[1], int64(4))
        for pair in range(PAGE // 2):
            low, high = (
                builder.select(
                    builder.icmp_signed(">", keys, ir.Constant(_I32, 2 * pair + half)),
                    ir.Constant(_I32, 0xFFFF << 16 * half),
                    ir.Constant(_I32, 0),
                )
                for half in range(2)
            )
            mask = splat(builder, builder.or_(low, high))
            base = builder.mul(row_bytes, int64(pair))
            loop = Loop(builder, builder.udiv(args[1], int64(LANES)), [])
            at = builder.add(base, builder.mul(loop.index, int64(64)))
            store(builder, builder.and_(load(builder, values, at, _INTS), mask), to, at)
            loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def make_weigh(packs: bool) -> Any:
    """An intrinsic that turns scores into weights: rounded, as float32 in place or packed to bfloat16."""

    @intrinsic
    def weigh(typingctx: Any, scores: Any, first: Any, limit: Any, num_pages: Any) -> Any:
        """Scores (to base 2) of the keys [first, limit) become weights, others 0; returns the sum of the rounded ones.

        int64: the address, and positions counted from it. The 16 lanes, by position, are added in a tree: its order is
        fixed by the positions. A score that is NaN makes all weights NaN.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], _I8.as_pointer())
            first, limit = (splat(builder, builder.trunc(args[i], _I32)) for i in (1, 2))
            zero = constant(_FLOATS, 0.0)
            top = largest_score(builder, base, args[3], first, limit)
            loop = Loop(builder, args[3], [zero])
            at, seen = seen_keys(builder, loop, first, limit)
            weight = exp2(builder, builder.fsub(load(builder, base, at, _FLOATS), top))
            bits = rounded_bits(builder, builder.select(seen, weight, zero))
            rounded = widened(builder, bits)
            if packs:
                store(builder, bits, base, builder.mul(loop.index, int64(2 * LANES)))
            else:
                store(builder, rounded, base, at)
            total = builder.fadd(loop.carried[0], rounded)
            loop.close([total])
            return tree(builder, total, builder.fadd)

        return types.float32(*[types.int64] * 4), codegen

    return weigh


def make_score_page(num_queries: int) -> Any:
    """An intrinsic for so many queries of one head: their scores with the 16 keys of a page.

    `(queries, head_dim, keys, scores, scores_bytes, ahead, factor)`, int64 but for the factor: rounded queries
    (float32) lie one behind another; scores (float32 [16]) of a query are scores_bytes from the next one's. `ahead` is
    a page's part that will be needed soon.
    """

    @intrinsic
    def score_page(
        typingctx: Any, queries: Any, head_dim: Any, keys: Any, scores: Any, scores_bytes: Any, ahead: Any, factor: Any
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            queries, keys, scores, ahead = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2, 3, 5))
            row_bytes = builder.mul(args[1], int64(4))
            rows = [builder.gep(queries, [builder.mul(row_bytes, int64(i))]) for i in range(num_queries)]

            def sums(first: Any, num_pairs: int) -> list[Any]:
                """Of so many pairs of dims from one on."""
                base = builder.mul(first, int64(64))
                lines: list[Any] = []
                for pair in range(num_pairs):
                    line = builder.add(base, int64(64 * pair))
                    lines.append(load(builder, keys, line, _INTS))
                    prefetch(builder, ahead, line)
                return dot_pairs(builder, rows, lines, builder.mul(first, int64(8)))

            # A head may end in half a group.
            kept = [cgutils.alloca_once(builder, _FLOATS) for _ in rows]
            for place in kept:
                builder.store(constant(_FLOATS, 0.0), place)
            groups = builder.udiv(args[1], int64(2 * LANES))
            with builder.if_then(builder.icmp_signed(">", groups, int64(0))):
                loop = Loop(builder, groups, [constant(_FLOATS, 0.0)] * num_queries)
                new = sums(builder.mul(loop.index, int64(LANES)), LANES)
                grown = [builder.fadd(total, more) for total, more in zip(loop.carried, new, strict=True)]
                loop.close(grown)
                for place, total in zip(kept, grown, strict=True):
                    builder.store(total, place)
            whole = builder.mul(groups, int64(2 * LANES))
            with builder.if_then(builder.icmp_signed(">", args[1], whole)):
                new = sums(builder.mul(groups, int64(LANES)), LANES // 2)
                for place, more in zip(kept, new, strict=True):
                    builder.store(builder.fadd(builder.load(place), more), place)
            for i, place in enumerate(kept):
                score = builder.fmul(builder.load(place), splat(builder, args[6]))
                store(builder, score, scores, builder.mul(args[4], int64(i)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6, types.float32), codegen

    return score_page


def make_add_page(num_queries: int, num_parts: int) -> Any:
    """An intrinsic for so many queries of one head and 16 * num_parts of its dims.

    `(weights, weights_bytes, values, head_dim, out, ahead)`, all int64: out[d] += sum over the page's keys of
    weights[key] * values[key, d]. Rows of `out` (float32 [head_dim]) lie one behind another; weights are float32 [16].
    """

    @intrinsic
    def add_page(
        typingctx: Any, weights: Any, weights_bytes: Any, values: Any, head_dim: Any, out: Any, ahead: Any
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, values, out, ahead = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2, 4, 5))
            row_bytes = builder.mul(args[3], int64(4))
            rows = [builder.gep(weights, [builder.mul(args[1], int64(i))]) for i in range(num_queries)]
            outs = [builder.gep(out, [builder.mul(row_bytes, int64(i))]) for i in range(num_queries)]
            for part in range(num_parts):
                lines: list[Any] = []
                for pair in range(PAGE // 2):
                    line = builder.add(builder.mul(row_bytes, int64(pair)), int64(64 * part))
                    lines.append(load(builder, values, line, _INTS))
                    prefetch(builder, ahead, line)
                for place, new in zip(outs, dot_pairs(builder, rows, lines, int64(0)), strict=True):
                    store(builder, builder.fadd(load(builder, place, 64 * part, _FLOATS), new), place, 64 * part)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return add_page
