"""Products of queries with keys, and of weights with values, over one page of int8: by the vectors' byte instructions.

The layout of a page is in `kv_int8`. All sums are exact integers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.attention_frame import PAGE
from octavo_worker.kernels.integer import Loop, constant, dot4, int64, load, prefetch, splat, store
from octavo_worker.kernels.softmax_bytes import CHUNK, finish_scores
from octavo_worker.kernels.vector import LANES, intrinsic

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)


def make_score_page(num_queries: int) -> Any:
    """An intrinsic for so many queries of one head: their scores with the 16 keys of a page.

    `(queries, head_dim, words, keys, scales, scores, scores_bytes, ahead)`, all int64: high bytes of a query are
    followed by its low ones; `words` of each as `split_query` writes them; scores (float32 [16]) of a query are
    scores_bytes from the next one's. `ahead` is a page's part that will be needed soon.
    """

    @intrinsic
    def score_page(
        typingctx: Any, queries: Any, head_dim: Any, words: Any, keys: Any, scales: Any, scores: Any,
        scores_bytes: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _I8.as_pointer()
            queries, words, keys, scales, scores, ahead = (
                builder.inttoptr(args[i], pointer) for i in (0, 2, 3, 4, 5, 7)
            )
            query_bytes = builder.mul(args[1], int64(2))
            rows = [builder.gep(queries, [builder.mul(query_bytes, int64(i))]) for i in range(num_queries)]
            loop = Loop(builder, builder.udiv(args[1], int64(4)), [constant(_INTS, 0)] * 2 * num_queries)
            line = builder.mul(loop.index, int64(64))
            vector = load(builder, keys, line, _INTS)
            prefetch(builder, ahead, line)
            at = builder.mul(loop.index, int64(4))
            grown: list[Any] = []
            for i, row in enumerate(rows):
                for half, place in enumerate((at, builder.add(at, args[1]))):
                    word = splat(builder, load(builder, row, place, _I32))
                    grown.append(dot4(builder, loop.carried[2 * i + half], vector, word))
            loop.close(grown)
            key_scales = load(builder, scales, 0, _FLOATS)
            for i in range(num_queries):
                result = finish_scores(builder, grown[2 * i], grown[2 * i + 1], words, i, key_scales)
                store(builder, result, scores, builder.mul(args[6], int64(i)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    return score_page


def make_add_page(num_queries: int, num_parts: int) -> Any:
    """An intrinsic for so many queries of one head and 16 * num_parts of its dims.

    `(weights, weights_bytes, values, head_dim, out, out_bytes, ahead)`, all int64: out[d] += sum over the page's keys
    of weights[key] * values[key, d], for the weights' high halves (int32 [head_dim]) and behind them for the low ones.
    `weights` is the page's place in its chunk, see `softmax_bytes`.
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
            word_bytes = builder.mul(args[3], int64(4))
            rows = [builder.gep(weights, [builder.mul(args[1], int64(i))]) for i in range(num_queries)]
            outs = [
                builder.gep(place, [builder.mul(word_bytes, int64(half))])
                for place in (builder.gep(out, [builder.mul(args[5], int64(i))]) for i in range(num_queries))
                for half in range(2)
            ]
            totals = [[load(builder, place, 64 * part, _INTS) for part in range(num_parts)] for place in outs]
            for word in range(PAGE // 4):
                base = builder.mul(word_bytes, int64(word))
                columns = [
                    load(builder, values, builder.add(base, int64(64 * part)), _INTS) for part in range(num_parts)
                ]
                for part in range(num_parts):
                    prefetch(builder, ahead, builder.add(base, int64(64 * part)))
                for i, row in enumerate(rows):
                    for half in range(2):
                        factor = splat(builder, load(builder, row, CHUNK * half + 4 * word, _I32))
                        mine = totals[2 * i + half]
                        for part, column in enumerate(columns):
                            mine[part] = dot4(builder, mine[part], factor, column)
            for place, mine in zip(outs, totals, strict=True):
                for part, total in enumerate(mine):
                    store(builder, total, place, 64 * part)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return add_page
