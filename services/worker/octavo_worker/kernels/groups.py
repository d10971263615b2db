"""Groups of 32 floats to bytes with one scale each, as they are or multiplied by a Hadamard matrix first.

Rounding errors of a group are as large as its largest value makes them. Multiplied by the orthogonal Hadamard matrix H
of 32 a group's values become about equally large, and x w = (x H) (w H) for every group of a product, so that weights
that are mixed once want activations that are mixed alike (QuaRot, arXiv 2404.00456, which mixes whole rows). On the
demo model it makes the loss by int8 activations five times smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from octavo_worker.kernels.integer import GROUP, call, constant, fma, load, splat, store
from octavo_worker.kernels.vector import LANES, intrinsic

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_INTS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, LANES)
_NORM = float(np.float32(GROUP**-0.5))


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


def mixed(builder: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """32 floats times H, Sylvester's: sums and differences of pairs 16, 8, 4, 2 and 1 apart, then times 32**-0.5."""
    halves = [builder.fadd(left, right), builder.fsub(left, right)]
    for distance in (8, 4, 2, 1):
        order = ir.Constant(_INTS, [lane ^ distance for lane in range(LANES)])
        # Exact, so that one rounding is left: other + x in the first of a pair, other - x in the second.
        signs = ir.Constant(_FLOATS, [-1.0 if lane & distance else 1.0 for lane in range(LANES)])
        halves = [fma(builder, half, signs, builder.shuffle_vector(half, half, order)) for half in halves]
    left, right = (builder.fmul(half, constant(_FLOATS, _NORM)) for half in halves)
    return left, right


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


@intrinsic
def quantize_mixed_group(typingctx: Any, values: Any, ints: Any, scale: Any, total: Any, zero: Any) -> Any:
    """Quantise 32 float32 times H to int8 with one scale.

    All int64: addresses of the values, of 32 int8, of the scale (float32) and of the sum that the group's dot product
    starts from, int32 -zero * (sum of p); and the zero point of the weights to come.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, ints, scale, total = (builder.inttoptr(args[i], _I8.as_pointer()) for i in range(4))
        parts = mixed(builder, *(load(builder, values, 4 * LANES * i, _FLOATS) for i in range(2)))
        _, counted = _put_rounded(builder, list(parts), ints, scale)
        store(builder, builder.mul(builder.neg(builder.trunc(args[4], _I32)), counted), total, 0)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def quantize_halves(typingctx: Any, values: Any, ints: Any, scales: Any, totals: Any, zero: Any) -> Any:
    """Quantise 32 float32 to int8 with a scale for each 16, which is what activations that cannot be mixed need.

    All int64, as of `quantize_mixed_group`, with two scales and two sums. With zero 0 (weights with minima) the sums
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
        parts = mixed(builder, *(load(builder, base, 4 * LANES * i, _FLOATS) for i in range(2)))
        for i, part in enumerate(parts):
            store(builder, part, base, 4 * LANES * i)
        return context.get_dummy_value()

    return types.void(types.int64), codegen
