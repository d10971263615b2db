"""Products of bytes by the processor's matrix unit (Intel AMX), for attention of 16 queries at once.

One instruction multiplies 16 rows of 64 bytes with 64 x 16 others and adds the products up in int32: exactly, as the
vector instructions in `page_products` do. `amx_groups` has the products of rows with weights.

The unit's registers belong to a thread and are nobody's over a call. An operating system gives them to a process that
asks for them once.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.integer import Loop, call, int64, load, store
from octavo_worker.kernels.softmax_bytes import CHUNK, PAGES_A_CHUNK, finish_scores
from octavo_worker.kernels.vector import LANES, intrinsic

# Rows and columns of a register of int32; its bytes.
SIDE, TILE_BYTES = 16, 1024
# Dims that one product of weights with values takes, and its bytes for a chunk of keys.
DIMS, CHUNK_BYTES = 32, 32 * CHUNK
_I8, _I32 = ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)
# x86-64 Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def has_amx() -> bool:
    """Whether this process may use the matrix unit for bytes; asks for it the first time."""
    features = llvm.get_host_cpu_features()
    if not all(features.get(name) for name in ("amx-int8", "amx-tile", "avx512vnni")):
        return False
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def do(builder: Any, name: str, *args: Any) -> None:
    """One of the unit's instructions; numbers name registers."""
    values = [ir.Constant(_I8, arg) if isinstance(arg, int) else arg for arg in args]
    call(builder, f"llvm.x86.{name}", ir.VoidType(), values)


def _pointers(builder: Any, args: Any) -> list[Any]:
    return [builder.inttoptr(arg, _I8.as_pointer()) for arg in args]


def make_shapes(columns: list[int], rows: list[int]) -> Any:
    """An intrinsic that gives the eight registers so many bytes a row, and so many rows."""
    shapes = struct.pack("<16B16H16B", 1, *[0] * 15, *columns, *[0] * 8, *rows, *[0] * 8)

    @intrinsic
    def shape(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kept = ir.Constant(ir.ArrayType(_I8, len(shapes)), bytearray(shapes))
            place = cgutils.global_constant(builder, "octavo_tile_shapes", kept)
            do(builder, "ldtilecfg", builder.bitcast(place, _I8.as_pointer()))
            return context.get_dummy_value()

        return types.void(), codegen

    return shape


# All registers alike.
shape_tiles = make_shapes([64] * 8, [SIDE] * 8)


@intrinsic
def release_tiles(typingctx: Any) -> Any:
    """Give the registers back, so that no switch between threads saves them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        do(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def score_tile(typingctx: Any, queries: Any, head_dim: Any, keys: Any, sums: Any) -> Any:
    """Dot products of 16 queries with the 16 keys of a page: of the high bytes (int32 [16, 16]), then of the low ones.

    All int64; a multiple of 64 dims; queries as in `page_products`.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        queries, keys, sums = _pointers(builder, (args[0], args[2], args[3]))
        query_bytes = builder.mul(args[1], int64(2))
        for half in range(2):
            do(builder, "tilezero", half)
        loop = Loop(builder, builder.udiv(args[1], int64(64)), [])
        high = builder.gep(queries, [builder.mul(loop.index, int64(64))])
        do(builder, "tileloadd64", 6, builder.gep(keys, [builder.mul(loop.index, int64(TILE_BYTES))]), int64(64))
        for half, place in enumerate((high, builder.gep(high, [args[1]]))):
            do(builder, "tileloadd64", 4 + half, place, query_bytes)
            do(builder, "tdpbsud", half, 4 + half, 6)
        loop.close([])
        for half in range(2):
            place = builder.gep(sums, [int64(TILE_BYTES * half)])
            do(builder, "tilestored64", half, place, int64(64))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def put_scores(typingctx: Any, sums: Any, words: Any, scales: Any, scores: Any, scores_bytes: Any) -> Any:
    """Scores of 16 queries from what `score_tile` left. All int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, words, scales, scores = _pointers(builder, args[:4])
        key_scales = load(builder, scales, 0, _FLOATS)
        for query in range(SIDE):
            high, low = (load(builder, sums, 64 * query + TILE_BYTES * half, _INTS) for half in range(2))
            result = finish_scores(builder, high, low, words, query, key_scales)
            store(builder, result, scores, builder.mul(args[4], int64(query)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def gather_values(typingctx: Any, values: Any, head_dim: Any, to: Any) -> Any:
    """Copy DIMS dims of a page's values to its place in a chunk's [keys / 4, DIMS, 4 keys]. All int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, to = _pointers(builder, (args[0], args[2]))
        word_bytes = builder.mul(args[1], int64(4))
        for word in range(LANES // 4):
            row = builder.gep(values, [builder.mul(word_bytes, int64(word))])
            for part in range(4 * DIMS // 64):
                store(builder, load(builder, row, 64 * part, _INTS), to, 4 * DIMS * word + 64 * part)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def start_sums(typingctx: Any) -> Any:
    """Begin sums of weights times values."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for register in range(4):
            do(builder, "tilezero", register)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def add_chunk(typingctx: Any, weights: Any, weights_bytes: Any, values: Any) -> Any:
    """Add the products of 16 queries' weights for a chunk, weights_bytes apart, with its gathered values. All int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, values = _pointers(builder, (args[0], args[2]))
        for half in range(2):
            do(builder, "tileloadd64", 4 + half, builder.gep(weights, [int64(CHUNK * half)]), args[1])
        for part in range(2):
            do(builder, "tileloadd64", 6 + part, builder.gep(values, [int64(64 * part)]), int64(4 * DIMS))
            for half in range(2):
                do(builder, "tdpbusd", 2 * half + part, 4 + half, 6 + part)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def put_sums(typingctx: Any, out: Any, out_bytes: Any, head_dim: Any) -> Any:
    """Write sums of 16 queries, out_bytes apart: of the high halves, and 4 * head_dim bytes behind of the low ones."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (out,) = _pointers(builder, args[:1])
        for half in range(2):
            first = builder.gep(out, [builder.mul(args[2], int64(4 * half))])
            for part in range(2):
                place = builder.gep(first, [int64(64 * part)])
                do(builder, "tilestored64", 2 * half + part, place, args[1])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


assert DIMS * 4 == 2 * 64 and CHUNK == PAGES_A_CHUNK * LANES, "what the registers hold"
