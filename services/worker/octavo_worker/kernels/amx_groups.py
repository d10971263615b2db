"""Products of bytes in groups of 64 by the processor's matrix unit (Intel AMX), scaled as `integer` does it.

One instruction multiplies 16 rows' groups with those of 16 outputs. The sums of each group leave the unit, since each
has a scale of its own, and are added up in memory in the order of the vector instructions: the bits are the same. With
groups of 32 the way out costs as much as the products save; with groups of 64 many rows take 0.5 to 0.6 of the time.

As in `amx`, the registers are nobody's over a call, and `shape_tiles` must have given them their shapes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.amx import SIDE, TILE_BYTES, do
from octavo_worker.kernels.integer import MIXED_64, Loop, constant, fma, group_scales, int64, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

_I8, _I32 = ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)
# Registers: sums, then rows, then weights.
_ROWS, _WEIGHTS = 4, 6
# A row of 16 sums.
_LINE = 4 * LANES


def make_dot_groups(num_tiles: int) -> Any:
    """An intrinsic for two blocks of 16 rows and so many tiles of outputs (1 or 2), in the format MIXED_64.

    `(weights, ints, scales, sums, num_inputs, num_rows, out, stride, adds)` as of `integer.make_dot_rows`; all the rows
    of both blocks must be readable, of which the first num_rows are written.
    """
    form, num_blocks = MIXED_64, 2

    @intrinsic
    def dot_groups(
        typingctx: Any,
        weights: Any,
        ints: Any,
        scales: Any,
        sums: Any,
        num_inputs: Any,
        num_rows: Any,
        out: Any,
        stride: Any,
        adds: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, ints, scales, sums, out = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 1, 2, 3, 6))
            num_inputs, num_rows = args[4], args[5]
            num_groups = builder.udiv(num_inputs, int64(form.group))
            tile_bytes, group_row_bytes = (builder.mul(num_groups, int64(n)) for n in (form.group_bytes, 4))
            line_bytes = _LINE * num_tiles
            # What leaves the unit, and what it has come to so far: rows of num_tiles times 16 numbers.
            found, totals = (_room(builder, num_blocks * num_tiles * TILE_BYTES) for _ in range(2))

            clear = Loop(builder, num_rows, [])
            for j in range(num_tiles):
                at = builder.add(builder.mul(clear.index, int64(line_bytes)), int64(_LINE * j))
                store(builder, constant(_FLOATS, 0.0), totals, at)
            clear.close([])

            loop = Loop(builder, num_groups, [])
            in_row = builder.mul(loop.index, int64(form.group))
            in_tile = builder.mul(loop.index, int64(form.group_bytes))
            blocks = [
                builder.gep(ints, [builder.add(builder.mul(num_inputs, int64(SIDE * i)), in_row)])
                for i in range(num_blocks)
            ]
            tiles = [
                builder.gep(weights, [builder.add(builder.mul(tile_bytes, int64(j)), in_tile)])
                for j in range(num_tiles)
            ]
            for i, block in enumerate(blocks):
                do(builder, "tileloadd64", _ROWS + i, block, num_inputs)
            for j, tile in enumerate(tiles):
                do(builder, "tileloadd64", _WEIGHTS + j, tile, int64(64))
                for i in range(num_blocks):
                    register = num_tiles * i + j
                    do(builder, "tilezero", register)
                    do(builder, "tdpbsud", register, _ROWS + i, _WEIGHTS + j)
                    place = builder.gep(found, [int64(SIDE * line_bytes * i + _LINE * j)])
                    do(builder, "tilestored64", register, place, int64(line_bytes))
            deltas = [group_scales(builder, tile, form)[0] for tile in tiles]
            in_group = builder.mul(loop.index, int64(4))

            rows = Loop(builder, num_rows, [])
            in_rows = builder.add(builder.mul(rows.index, group_row_bytes), in_group)
            scale = splat(builder, load(builder, scales, in_rows, ir.FloatType()))
            start = splat(builder, load(builder, sums, in_rows, _I32))
            for j in range(num_tiles):
                at = builder.add(builder.mul(rows.index, int64(line_bytes)), int64(_LINE * j))
                whole = builder.add(load(builder, found, at, _INTS), start)
                scaled = builder.fmul(builder.sitofp(whole, _FLOATS), scale)
                store(builder, fma(builder, scaled, deltas[j], load(builder, totals, at, _FLOATS)), totals, at)
            rows.close([])
            loop.close([])
            _put(builder, totals, line_bytes, num_tiles, num_rows, (out, args[7], args[8]))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return dot_groups


def _room(builder: Any, num_bytes: int) -> Any:
    """Bytes on the stack, at the border of a cache line."""
    place = cgutils.alloca_once(builder, ir.ArrayType(_I8, num_bytes))
    place.align = 64
    return builder.bitcast(place, _I8.as_pointer())


def _put(builder: Any, totals: Any, line_bytes: int, num_tiles: int, num_rows: Any, to: tuple[Any, Any, Any]) -> None:
    """Write rows of totals, or add them to what is there: `to` are the place, floats between rows, whether to add."""
    out, stride, adds = to
    row_bytes = builder.mul(stride, int64(4))

    def each(adding: bool) -> None:
        loop = Loop(builder, num_rows, [])
        place = builder.gep(out, [builder.mul(loop.index, row_bytes)])
        for j in range(num_tiles):
            at = builder.add(builder.mul(loop.index, int64(line_bytes)), int64(_LINE * j))
            value = load(builder, totals, at, _FLOATS)
            if adding:
                value = builder.fadd(load(builder, place, _LINE * j, _FLOATS), value)
            store(builder, value, place, _LINE * j)
        loop.close([])

    with builder.if_else(builder.icmp_signed("!=", adds, int64(0))) as (then, otherwise):
        with then:
            each(True)
        with otherwise:
            each(False)
