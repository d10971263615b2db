"""Groups of 32 or 64 floats to bytes with one scale each, as they are or multiplied by a Hadamard matrix first.

Rounding errors of a group are as large as its largest value makes them. Multiplied by the orthogonal Hadamard matrix H
of its size a group's values become about equally large, and x w = (x H) (w H) for every group of a product, so that
weights that are mixed once want activations that are mixed alike (QuaRot, arXiv 2404.00456, which mixes whole rows). In
groups of 32 it makes the demo model's loss by int8 activations five times smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.integer import call, constant, fma, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, LANES)


def peak(builder: Any, vectors: list[Any]) -> Any:
    """Largest size in some vectors of floats; NaN where one is NaN. Sizes compare like the integers of their bits."""
    bits = [builder.and_(builder.bitcast(v, _INTS), constant(_INTS, 0x7FFFFFFF)) for v in vectors]
    largest = bits[0]
    for more in bits[1:]:
        largest = builder.select(builder.icmp_unsigned(">", more, largest), more, largest)
    return builder.bitcast(call(builder, f"llvm.vector.reduce.umax.v{LANES}i32", _I32, [largest]), _F32)


def scaling(builder: Any, largest: Any, most: Any) -> tuple[Any, Any]:
    """The scale that makes the largest size the integer ``most``, NaN for what is not finite; and its inverse."""
    is_zero = builder.fcmp_ordered("==", largest, ir.Constant(_F32, 0.0))
    inverse = builder.fdiv(most, builder.select(is_zero, ir.Constant(_F32, 1.0), largest))
    # infinity * 0 and NaN * 0 are NaN; everything else adds nothing
    scale = builder.fdiv(largest, most)
    return builder.fadd(scale, builder.fmul(largest, ir.Constant(_F32, 0.0))), inverse


def rounded(builder: Any, part: Any, inverse: Any) -> Any:
    """A vector times a scalar, to the nearest integers, ties to even."""
    whole = call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, [builder.fmul(part, splat(builder, inverse))])
    return builder.fptosi(whole, _INTS)


def mixed(builder: Any, parts: list[Any]) -> list[Any]:
    """A group in vectors of 16 floats times H, Sylvester's, and one over the root of its size.

    Sums and differences of what is half a group apart, then a quarter, and so on down to neighbours.
    """
    count = len(parts)
    distance = count // 2
    while distance:
        parts = [
            builder.fsub(parts[i - distance], parts[i]) if i & distance else builder.fadd(parts[i], parts[i + distance])
            for i in range(count)
        ]
        distance //= 2
    for lanes in (8, 4, 2, 1):
        order = ir.Constant(_INTS, [lane ^ lanes for lane in range(LANES)])
        # Exact, so that one rounding is left: other + x in the first of a pair, other - x in the second.
        signs = ir.Constant(_FLOATS, [-1.0 if lane & lanes else 1.0 for lane in range(LANES)])
        parts = [fma(builder, part, signs, builder.shuffle_vector(part, part, order)) for part in parts]
    norm = constant(_FLOATS, float(np.float32((LANES * count) ** -0.5)))
    return [builder.fmul(part, norm) for part in parts]


def _put_rounded(builder: Any, parts: list[Any], ints: Any, scale_at: Any) -> tuple[Any, Any]:
    """Round vectors to bytes with one scale: s = max |x| / 127, p = round(x / s), ties to even. Returns s, sum of p.

    A value that is no number, or infinite, makes the scale NaN and with it every result of the row.
    """
    scale, inverse = scaling(builder, peak(builder, parts), ir.Constant(_F32, 127.0))
    counted = constant(_INTS, 0)
    for i, part in enumerate(parts):
        whole = rounded(builder, part, inverse)
        counted = builder.add(counted, whole)
        store(builder, builder.trunc(whole, _BYTES), ints, LANES * i)
    store(builder, scale, scale_at, 0)
    return scale, call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _I32, [counted])


def make_quantize_mixed(group: int) -> Any:
    """An intrinsic that quantises a group of float32 times H to int8 with one scale.

    `(values, ints, scale, total, zero)`, all int64: addresses of the values, of as many int8, of the scale (float32)
    and of the sum that the group's dot product starts from, int32 -zero * (sum of p); and the zero point of the
    weights to come.
    """

    @intrinsic
    def quantize_mixed(typingctx: Any, values: Any, ints: Any, scale: Any, total: Any, zero: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values, ints, scale, total = (builder.inttoptr(args[i], _I8.as_pointer()) for i in range(4))
            parts = mixed(builder, [load(builder, values, 4 * LANES * i, _FLOATS) for i in range(group // LANES)])
            _, counted = _put_rounded(builder, parts, ints, scale)
            store(builder, builder.mul(builder.neg(builder.trunc(args[4], _I32)), counted), total, 0)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return quantize_mixed


@intrinsic
def quantize_halves(typingctx: Any, values: Any, ints: Any, scales: Any, totals: Any, zero: Any) -> Any:
    """Quantise 32 float32 to int8 with a scale for each 16, which is what activations that cannot be mixed need.

    All int64, as of `make_quantize_mixed`, with two scales and two sums. With zero 0 (weights with minima) the sums
    are floats instead: the first is s * (sum of p) of both halves together.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, ints, scales, totals = (builder.inttoptr(args[i], _I8.as_pointer()) for i in range(4))
        zero = builder.trunc(args[4], _I32)
        offset, sums = ir.Constant(_F32, 0.0), list[Any]()
        for half in range(2):
            part = load(builder, values, 4 * LANES * half, _FLOATS)
            place = builder.gep(ints, [ir.Constant(_I32, LANES * half)])
            scale, counted = _put_rounded(builder, [part], place, builder.gep(scales, [ir.Constant(_I32, 4 * half)]))
            offset = builder.fadd(offset, builder.fmul(scale, builder.sitofp(counted, _F32)))
            sums.append(builder.mul(builder.neg(zero), counted))
        has_minima = builder.icmp_signed("==", zero, ir.Constant(_I32, 0))
        store(builder, builder.select(has_minima, builder.bitcast(offset, _I32), sums[0]), totals, 0)
        store(builder, sums[1], totals, 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def mix_group(typingctx: Any, values: Any) -> Any:
    """Multiply 32 float32 at an address by H, in place; twice gives them back."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _I8.as_pointer())
        parts = mixed(builder, [load(builder, base, 4 * LANES * i, _FLOATS) for i in range(2)])
        for i, part in enumerate(parts):
            store(builder, part, base, 4 * LANES * i)
        return context.get_dummy_value()

    return types.void(types.int64), codegen
