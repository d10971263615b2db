"""Pieces of integer arithmetic for numba kernels: dot products of bytes in groups with a scale each.

The scheme is llama.cpp's: a group of 32 weights shares a scale (and, in Q4_1, a minimum), and so does a group of 32
activations, or each half of it (see `groups`; groups may have 64, too). With weights w = d q + m and activations
x = s p,

    sum over the group of w x  =  d s (sum of q p)  +  m s (sum of p).

The sum of q p is exact in int32. Groups are added in float32 in rising order, each by the same two or three operations
whatever the number of rows, so a row's result is bit for bit the same in any company.

Weights lie in tiles of 16 outputs, group after group: vector j of a group holds bytes 4j .. 4j + 3 of the group for
each of the 16 outputs, then come the 16 scales (and minima) as float16. That is what one `vpdpbusd` wants
(AVX512-VNNI); elsewhere the same integers are added up by ordinary instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from octavo_worker.kernels.vector import LANES, intrinsic

GROUP = 32
_F16, _F32 = ir.HalfType(), ir.FloatType()
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_INTS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(_F32, LANES)
_HALVES = ir.VectorType(_F16, LANES)
_BYTES = ir.VectorType(_I8, LANES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How weights are stored. Unsigned integers q stand for d (q - zero), or for d q + m where there are minima."""

    name: str
    # 4 or 8; of 4-bit ones, vectors j and j + 4 share a vector of bytes, j in the low halves.
    bits: int
    zero: int
    has_minima: bool
    # Each group of a row is multiplied by a Hadamard matrix, and so must be the activations: see `groups`.
    mixed: bool = False
    # Inputs that share a scale.
    group: int = GROUP

    @property
    def num_scales(self) -> int:
        """Scales of a group of activations: one if it is mixed, else one for each half."""
        return 1 if self.mixed else 2

    @property
    def place(self) -> int:
        """Its place among all formats: numbers alone may stand in a kernel that is to be found again on disk."""
        return _ALL.index(self)

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 outputs' groups."""
        return self.group * self.bits * LANES // 8 + 2 * LANES * (2 if self.has_minima else 1)

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Bytes of a matrix; both sizes are padded, to tiles and groups."""
        return -(-num_outputs // LANES) * -(-num_inputs // self.group) * self.group_bytes


# As GGUF's Q8_0, Q4_0 and Q4_1.
Q8_0 = Format(name="q8_0", bits=8, zero=128, has_minima=False)
Q4_0 = Format(name="q4_0", bits=4, zero=8, has_minima=False)
Q4_1 = Format(name="q4_1", bits=4, zero=0, has_minima=True)
FORMATS = (Q8_0, Q4_0, Q4_1)
# What floats become: mixed, so that one large value does not make the steps of its group coarse. Groups of 64 are what
# a matrix unit multiplies at once; they want widths that are multiples of 64.
MIXED_32 = replace(Q8_0, name="mixed_32", mixed=True)
MIXED_64 = replace(MIXED_32, name="mixed_64", group=64)
_ALL = (*FORMATS, MIXED_32, MIXED_64)


def has_vnni() -> bool:
    """Whether this machine multiplies and adds four bytes a lane in one instruction of 16 lanes."""
    return bool(llvm.get_host_cpu_features().get("avx512vnni"))


def constant(kind: Any, value: Any) -> Any:
    """A constant; of a vector, in all lanes."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    """Call an intrinsic of LLVM's."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def int64(value: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(_I64, value)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """A b + c of vectors of 16 floats, rounded once."""
    return call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, [a, b, c])


def splat(builder: Any, scalar: Any) -> Any:
    """A scalar in all lanes."""
    nothing = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    one = builder.insert_element(nothing, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, nothing, constant(ir.VectorType(_I32, LANES), 0))


def load(builder: Any, base: Any, num_bytes: Any, kind: Any) -> Any:
    """Read a value some bytes behind a byte pointer; no alignment is assumed."""
    at = num_bytes if hasattr(num_bytes, "type") else int64(num_bytes)
    value = builder.load(builder.bitcast(builder.gep(base, [at]), kind.as_pointer()), typ=kind)
    value.align = 1
    return value


def store(builder: Any, value: Any, base: Any, num_bytes: Any) -> None:
    """Write a value some bytes behind a byte pointer."""
    at = num_bytes if hasattr(num_bytes, "type") else int64(num_bytes)
    builder.store(value, builder.bitcast(builder.gep(base, [at]), value.type.as_pointer())).align = 1


def prefetch(builder: Any, base: Any, num_bytes: Any) -> None:
    """Ask for the cache line some bytes behind a pointer; harmless wherever it points."""
    place = builder.gep(base, [num_bytes])
    kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [place, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])


def dot4(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """Total + four products of bytes in each lane; `unsigned` and `signed` are <16 x i32> of four bytes a lane."""
    if has_vnni():
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, [total, unsigned, signed])
    for byte in range(4):
        left = builder.and_(builder.lshr(unsigned, constant(_INTS, 8 * byte)), constant(_INTS, 255))
        right = builder.ashr(builder.shl(signed, constant(_INTS, 24 - 8 * byte)), constant(_INTS, 24))
        total = builder.add(total, builder.mul(left, right))
    return total


class Loop:
    """`for index in range(count)`, count >= 1, with values that go around."""

    def __init__(self, builder: Any, count: Any, carried: list[Any]) -> None:
        self._builder, self._count = builder, count
        entry = builder.block
        self._body = builder.append_basic_block("loop")
        self._after = builder.append_basic_block("loop.end")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(_I64)
        self.index.add_incoming(int64(0), entry)
        self.carried = [builder.phi(value.type) for value in carried]
        for phi, value in zip(self.carried, carried, strict=True):
            phi.add_incoming(value, entry)

    def close(self, carried: list[Any]) -> None:
        """End the body with the values for the next round; they are also what the loop leaves."""
        builder = self._builder
        following = builder.add(self.index, int64(1))
        self.index.add_incoming(following, builder.block)
        for phi, value in zip(self.carried, carried, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._body, self._after)
        builder.position_at_end(self._after)


def group_vectors(builder: Any, base: Any, form: Format) -> list[Any]:
    """The vectors of a group, four unsigned bytes a lane."""
    if form.bits == 8:
        return [load(builder, base, 64 * j, _INTS) for j in range(form.group // 4)]
    packed = [load(builder, base, 64 * j, _INTS) for j in range(4)]
    low = constant(_INTS, 0x0F0F0F0F)
    return [builder.and_(word, low) for word in packed] + [
        builder.and_(builder.lshr(word, constant(_INTS, 4)), low) for word in packed
    ]


def group_scales(builder: Any, base: Any, form: Format) -> tuple[Any, Any]:
    """The scales of a group's 16 outputs, and their minima or None."""
    at = form.group_bytes - 2 * LANES * (2 if form.has_minima else 1)
    deltas = builder.fpext(load(builder, base, at, _HALVES), _FLOATS)
    return deltas, builder.fpext(load(builder, base, at + 2 * LANES, _HALVES), _FLOATS) if form.has_minima else None


def scaled_group(
    builder: Any, lanes: tuple[Any, Any], totals: list[Any], scales: list[Any], offset: Any, result: Any
) -> Any:
    """A row's result so far + a group's sums times their scales."""
    deltas, minima = lanes
    scaled = builder.fmul(builder.sitofp(totals[0], _FLOATS), scales[0])
    for total, scale in zip(totals[1:], scales[1:], strict=True):
        scaled = fma(builder, builder.sitofp(total, _FLOATS), scale, scaled)
    result = fma(builder, scaled, deltas, result)
    return result if minima is None else fma(builder, minima, offset, result)


def put_results(builder: Any, results: list[Any], out: Any, stride: Any, adds: Any) -> None:
    """Write rows of 16 floats, `stride` floats apart, or add them to what is there."""
    row_bytes = builder.mul(stride, int64(4))
    outs = [builder.gep(out, [builder.mul(row_bytes, int64(row))]) for row in range(len(results))]
    with builder.if_else(builder.icmp_signed("!=", adds, int64(0))) as (then, otherwise):
        with then:
            for place, value in zip(outs, results, strict=True):
                store(builder, builder.fadd(load(builder, place, 0, _FLOATS), value), place, 0)
        with otherwise:
            for place, value in zip(outs, results, strict=True):
                store(builder, value, place, 0)


def make_dot_rows(num_rows: int) -> Any:
    """An intrinsic for one tile and so many rows.

    `(form, weights, ints, scales, sums, num_inputs, out, out_stride, adds)`: the format's `place`, a constant
    when the kernel is compiled; the rest int64: addresses, numbers of elements, and whether `out` (float32 [rows, 16],
    rows `out_stride` apart) is added to or written. Rows of `ints` (int8) are num_inputs apart, those of `scales` and
    `sums` num_inputs / 32 (or 64) times the format's number of scales: see `groups`.
    """

    @intrinsic
    def dot_rows(
        typingctx: Any,
        place: Any,
        weights: Any,
        ints: Any,
        scales: Any,
        sums: Any,
        num_inputs: Any,
        out: Any,
        stride: Any,
        adds: Any,
    ) -> Any:
        # A kernel that had the format itself would not be found again on disk: objects have no lasting name.
        if not isinstance(place, types.IntegerLiteral):
            return None
        form = _ALL[place.literal_value]

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer, args = _I8.as_pointer(), args[1:]
            weights, ints, scales, sums, out = (builder.inttoptr(args[i], pointer) for i in (0, 1, 2, 3, 5))
            num_inputs, stride, adds = args[4], args[6], args[7]
            num_groups = builder.udiv(num_inputs, int64(form.group))
            row_bytes = builder.mul(num_groups, int64(4 * form.num_scales))

            def starts(base: Any, step: Any) -> list[Any]:
                return [builder.gep(base, [builder.mul(step, int64(row))]) for row in range(num_rows)]

            rows, row_scales, row_sums = starts(ints, num_inputs), starts(scales, row_bytes), starts(sums, row_bytes)
            loop = Loop(builder, num_groups, [constant(_FLOATS, 0.0)] * num_rows)
            base = builder.gep(weights, [builder.mul(loop.index, int64(form.group_bytes))])
            vectors, lanes = group_vectors(builder, base, form), group_scales(builder, base, form)
            in_row = builder.mul(loop.index, int64(form.group))
            in_group = builder.mul(loop.index, int64(4 * form.num_scales))
            words = [builder.gep(row, [in_row]) for row in rows]

            def of_group(places: list[Any], kind: Any) -> list[list[Any]]:
                starts = [builder.gep(place, [in_group]) for place in places]
                return [
                    [splat(builder, load(builder, start, 4 * part, kind)) for part in range(form.num_scales)]
                    for start in starts
                ]

            # With minima the first is all of the group's.
            offsets = of_group(row_sums, _F32 if form.has_minima else _I32)
            totals = [[constant(_INTS, 0)] * form.num_scales if form.has_minima else list(row) for row in offsets]
            # Row after row for each vector: a row's products wait for each other, those of the rows do not.
            for j, vector in enumerate(vectors):
                part = j * form.num_scales // len(vectors)
                for row, word in enumerate(words):
                    four = splat(builder, load(builder, word, 4 * j, _I32))
                    totals[row][part] = dot4(builder, totals[row][part], vector, four)
            of_rows = zip(totals, of_group(row_scales, _F32), offsets, loop.carried, strict=True)
            grown = [
                scaled_group(builder, lanes, total, scales, offset[0], result)
                for total, scales, offset, result in of_rows
            ]
            loop.close(grown)
            put_results(builder, grown, out, stride, adds)
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 8), codegen

    return dot_rows


@intrinsic
def half_at(typingctx: Any, address: Any) -> Any:
    """The float16 at an address, as float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(load(builder, builder.inttoptr(args[0], _I8.as_pointer()), 0, _F16), _F32)

    return types.float32(types.int64), codegen


_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def exp(builder: Any, x: Any) -> Any:
    """E ** x of a vector, x <= 0, to 2 ulp: Cephes' expf. Below -87 it stays at 1e-38; NaN stays NaN."""
    lowest = constant(_FLOATS, -87.0)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    n = call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, [builder.fmul(x, constant(_FLOATS, _LOG2E))])
    r = fma(builder, n, constant(_FLOATS, -_LN2_HIGH), x)
    r = fma(builder, n, constant(_FLOATS, -_LN2_LOW), r)
    p = constant(_FLOATS, _EXP[0])
    for factor in _EXP[1:]:
        p = fma(builder, p, r, constant(_FLOATS, factor))
    p = builder.fadd(fma(builder, p, builder.fmul(r, r), r), constant(_FLOATS, 1.0))
    power = builder.shl(builder.add(builder.fptosi(n, _INTS), constant(_INTS, 127)), constant(_INTS, 23))
    return builder.fmul(p, builder.bitcast(power, _FLOATS))


@intrinsic
def gate_group(typingctx: Any, gate: Any, up: Any, out: Any) -> Any:
    """Out = silu(gate) * up for 32 float32 at addresses; silu(x) = x / (1 + e**-x)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        gate, up, out = (builder.inttoptr(arg, _I8.as_pointer()) for arg in args)
        one = constant(_FLOATS, 1.0)
        for i in range(2):
            x = load(builder, gate, 64 * i, _FLOATS)
            size = call(builder, f"llvm.fabs.v{LANES}f32", _FLOATS, [x])
            small = exp(builder, builder.fneg(size))
            # e**-|x| cannot overflow: for negative x both halves of the fraction are multiplied by it.
            top = builder.select(builder.fcmp_ordered(">=", x, constant(_FLOATS, 0.0)), one, small)
            silu = builder.fdiv(builder.fmul(x, top), builder.fadd(one, small))
            store(builder, builder.fmul(silu, load(builder, up, 64 * i, _FLOATS)), out, 64 * i)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen
