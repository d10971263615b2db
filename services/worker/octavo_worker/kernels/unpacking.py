"""Weights that are stored in groups of 32 with scales, as pairs of bfloat16: from `integer`'s layout to `bfloat16`'s.

What comes out is what the stored numbers are in float32, rounded: w = d (q - zero), or d q + m with one rounding for
the sum, since the product is exact. None is subnormal: all are multiples of the smallest float16.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.bfloat16 import GROUP_BYTES, Short, fma
from octavo_worker.kernels.integer import FORMATS, Format, Loop, call, constant, group_scales, int64, load, store
from octavo_worker.kernels.vector import LANES, intrinsic

_I8, _I32 = ir.IntType(8), ir.IntType(32)
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)


@cache
def _has(*features: str) -> bool:
    """Whether this machine has instructions that take the place of several."""
    found = llvm.get_host_cpu_features()
    return all(found.get(feature) for feature in features)


def _numbers(builder: Any, word: Any, shift: int, form: Format) -> Any:
    """The integers q - zero from a place in 16 words, as floats."""
    shifted = builder.lshr(word, constant(_INTS, shift)) if shift else word
    if form.bits == 4 and _has("avx512f"):
        # Looks up the lowest four bits and does not see the others.
        table = ir.Constant(_FLOATS, [float(q - form.zero) for q in range(LANES)])
        return call(builder, "llvm.x86.avx512.permvar.sf.512", _FLOATS, [table, shifted])
    whole = builder.and_(shifted, constant(_INTS, (1 << form.bits) - 1))
    return builder.sitofp(builder.sub(whole, constant(_INTS, form.zero)), _FLOATS)


def _pairs(builder: Any, low: Any, high: Any) -> Any:
    """Two vectors rounded, ties to even, as the halves of 16 words."""
    if _has("avx512bf16", "avx512bw"):
        wide = ir.VectorType(Short(), 2 * LANES)
        both = call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", wide, [high, low])
        both = builder.bitcast(both, ir.VectorType(ir.IntType(16), 2 * LANES))
        order = [lane for pair in zip(range(LANES), range(LANES, 2 * LANES), strict=True) for lane in pair]
        order = ir.Constant(ir.VectorType(_I32, 2 * LANES), order)
        return builder.bitcast(builder.shuffle_vector(both, ir.Constant(both.type, ir.Undefined), order), _INTS)
    bits = [builder.bitcast(builder.fptrunc(v, ir.VectorType(Short(), LANES)), _SHORTS) for v in (low, high)]
    first, second = (builder.zext(part, _INTS) for part in bits)
    return builder.or_(first, builder.shl(second, constant(_INTS, 16)))


@intrinsic
def unpack_groups(typingctx: Any, place: Any, weights: Any, num_groups: Any, to: Any) -> Any:
    """Write so many groups of 16 outputs. The format's place in FORMATS is a constant when the kernel is compiled."""
    if not isinstance(place, types.IntegerLiteral):
        return None
    form = FORMATS[place.literal_value]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, to = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (1, 3))
        loop = Loop(builder, args[2], [])
        base = builder.gep(weights, [builder.mul(loop.index, int64(form.group_bytes))])
        out = builder.gep(to, [builder.mul(loop.index, int64(GROUP_BYTES))])
        deltas, minima = group_scales(builder, base, form)
        for vector in range(form.bits):
            word = load(builder, base, 64 * vector, _INTS)
            # Of 4 bits, a word's high halves are those of a vector further on.
            for half in range(8 // form.bits):
                values: list[Any] = []
                for byte in range(4):
                    whole = _numbers(builder, word, 8 * byte + 4 * half, form)
                    values.append(
                        builder.fmul(whole, deltas) if minima is None else fma(builder, whole, deltas, minima)
                    )
                for pair in range(2):
                    line = 2 * (vector + 4 * half) + pair
                    store(builder, _pairs(builder, values[2 * pair], values[2 * pair + 1]), out, 64 * line)
        loop.close([])
        return context.get_dummy_value()

    return types.void(place, *[types.int64] * 3), codegen
