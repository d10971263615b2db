"""Products of bfloat16 by the processor's matrix unit (Intel AMX), in the order that `bfloat16` describes.

As in `amx`, the registers are nobody's over a call, and `shape_tiles` must have given them their shapes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.amx import SIDE, TILE_BYTES, do, has_amx, make_shapes
from octavo_worker.kernels.bfloat16 import GROUP, GROUP_BYTES
from octavo_worker.kernels.integer import Loop, int64, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

_I8 = ir.IntType(8)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
# Registers: sums, then rows, then weights.
_ROWS, _WEIGHTS = 4, 6


@cache
def has_amx_bf16() -> bool:
    """Whether this process may use the matrix unit for bfloat16."""
    return bool(llvm.get_host_cpu_features().get("amx-bf16")) and has_amx()


def make_dot_tiles(num_blocks: int, num_tiles: int) -> Any:
    """An intrinsic for so many blocks of 16 rows (1 or 2) and tiles of outputs (1 or 2).

    `(weights, tile_bytes, shorts, num_inputs, sums)`, all int64: tiles are tile_bytes apart, rows of bfloat16
    num_inputs; the rows of a block must be readable. `sums` takes float32 [blocks, tiles, 16, 16].
    """

    @intrinsic
    def dot_tiles(typingctx: Any, weights: Any, tile_bytes: Any, shorts: Any, num_inputs: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, shorts, sums = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2, 4))
            row_bytes = builder.mul(args[3], int64(2))
            block_bytes = builder.mul(row_bytes, int64(SIDE))
            blocks = [builder.gep(shorts, [builder.mul(block_bytes, int64(i))]) for i in range(num_blocks)]
            tiles = [builder.gep(weights, [builder.mul(args[1], int64(i))]) for i in range(num_tiles)]
            for register in range(num_blocks * num_tiles):
                do(builder, "tilezero", register)
            loop = Loop(builder, builder.udiv(args[3], int64(GROUP)), [])
            in_row = builder.mul(loop.index, int64(2 * GROUP))
            in_tile = builder.mul(loop.index, int64(GROUP_BYTES))
            for i, block in enumerate(blocks):
                do(builder, "tileloadd64", _ROWS + i, builder.gep(block, [in_row]), row_bytes)
            for j, tile in enumerate(tiles):
                do(builder, "tileloadd64", _WEIGHTS + j, builder.gep(tile, [in_tile]), int64(64))
                for i in range(num_blocks):
                    do(builder, "tdpbf16ps", num_tiles * i + j, _ROWS + i, _WEIGHTS + j)
            loop.close([])
            for register in range(num_blocks * num_tiles):
                place = builder.gep(sums, [int64(TILE_BYTES * register)])
                do(builder, "tilestored64", register, place, int64(64))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return dot_tiles


@intrinsic
def put_tile(typingctx: Any, sums: Any, num_rows: Any, out: Any, stride: Any, adds: Any) -> Any:
    """Write or add the first rows of 16 sums to rows of `out`, `stride` floats apart. All int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, out = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2))
        row_bytes = builder.mul(args[3], int64(4))
        adds = builder.icmp_signed("!=", args[4], int64(0))
        loop = Loop(builder, args[1], [])
        value = load(builder, sums, builder.mul(loop.index, int64(64)), _FLOATS)
        place = builder.gep(out, [builder.mul(loop.index, row_bytes)])
        kept = cgutils.alloca_once(builder, _FLOATS)
        builder.store(value, kept)
        with builder.if_then(adds):
            builder.store(builder.fadd(load(builder, place, 0, _FLOATS), value), kept)
        store(builder, builder.load(kept), place, 0)
        loop.close([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


# Of attention: sums of up to four parts of 16 dims, then queries, keys, weights, values.
_QUERIES, _KEYS, _PAIRS, _VALUES = range(4, 8)


# Registers have the shapes of attention: 16 keys are half a row of weights and 8 rows of values.
shape_attention_tiles = make_shapes([64] * 6 + [32, 64], [SIDE] * 7 + [SIDE // 2])


@intrinsic
def score_tile(
    typingctx: Any, queries: Any, head_dim: Any, keys: Any, sums: Any, scores: Any, scores_bytes: Any, factor: Any
) -> Any:
    """Scores of 16 queries (bfloat16) with the 16 keys of a page; a multiple of 32 dims. int64 but for the factor.

    `sums` is work space of 1,024 bytes; the scores of a query are scores_bytes from the next one's.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        queries, keys, sums, scores = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2, 3, 4))
        row_bytes = builder.mul(args[1], int64(2))
        do(builder, "tilezero", 0)
        loop = Loop(builder, builder.udiv(args[1], int64(GROUP)), [])
        in_row = builder.mul(loop.index, int64(2 * GROUP))
        in_page = builder.mul(loop.index, int64(GROUP_BYTES))
        do(builder, "tileloadd64", _QUERIES, builder.gep(queries, [in_row]), row_bytes)
        do(builder, "tileloadd64", _KEYS, builder.gep(keys, [in_page]), int64(64))
        do(builder, "tdpbf16ps", 0, _QUERIES, _KEYS)
        loop.close([])
        do(builder, "tilestored64", 0, sums, int64(64))
        factor = splat(builder, args[6])
        for query in range(SIDE):
            score = builder.fmul(load(builder, sums, 64 * query, _FLOATS), factor)
            store(builder, score, scores, builder.mul(args[5], int64(query)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32), codegen


def make_page_sums(num_parts: int) -> tuple[Any, Any]:
    """Intrinsics for 16 * num_parts dims, up to 64: one adds a page, one writes the sums.

    `add_page(weights, weights_bytes, values, head_dim)` takes 16 queries' weights for the page (bfloat16 [16],
    weights_bytes apart); `put_sums(out, head_dim)` writes rows of float32 [head_dim]. All int64.
    """

    @intrinsic
    def add_page(typingctx: Any, weights: Any, weights_bytes: Any, values: Any, head_dim: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, values = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 2))
            row_bytes = builder.mul(args[3], int64(4))
            do(builder, "tileloadd64", _PAIRS, weights, args[1])
            for part in range(num_parts):
                place = builder.gep(values, [int64(64 * part)])
                do(builder, "tileloadd64", _VALUES, place, row_bytes)
                do(builder, "tdpbf16ps", part, _PAIRS, _VALUES)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    @intrinsic
    def put_sums(typingctx: Any, out: Any, head_dim: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            out = builder.inttoptr(args[0], _I8.as_pointer())
            row_bytes = builder.mul(args[1], int64(4))
            for part in range(num_parts):
                do(builder, "tilestored64", part, builder.gep(out, [int64(64 * part)]), row_bytes)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 2), codegen

    return add_page, put_sums
