"""Products in groups: equal to the gguf package's own numbers in float64, and the same bits in any company."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from gguf.quants import quantize as gguf_quantize
from stored_blocks import stored

from octavo_worker.kernels import grouped_matmul, integer
from octavo_worker.kernels.embedding import TOKENS, embedding_stage
from octavo_worker.kernels.grouped_matmul import matmul_stage
from octavo_worker.kernels.integer import FORMATS, MIXED_32, MIXED_64
from octavo_worker.kernels.program import Program
from octavo_worker.kernels.quantize import gate_quantize_stage, norm_quantize_stage, quantize_stage
from octavo_worker.models.packed import pack, quantize, unpack_blocks

SHAPES = [(1, 64, 16), (3, 32, 48), (9, 96, 5), (41, 192, 33), (70, 1536, 17)]


def rows(num_rows, width, form):
    num_scales = width // form.group * form.num_scales
    return SimpleNamespace(
        # The matrix unit reads blocks of 16.
        ints=np.zeros((-(-num_rows // 16) * 16, width), np.int8)[:num_rows],
        scales=np.zeros((num_rows, num_scales), np.float32),
        sums=np.zeros((num_rows, num_scales), np.int32),
    )


def steps(kept):
    """Of every value, what one more or less of its integer stands for."""
    return np.repeat(kept.scales, kept.ints.shape[1] // kept.scales.shape[1], axis=1)


def places(group_rows):
    return {name: getattr(group_rows, name).ctypes.data for name in ("ints", "scales", "sums")}


def product(form, matrix, x, *, threads=1, bias=None, start=None):
    """Quantise rows and multiply them, as the engine does it."""
    num_rows, width = x.shape
    x, kept = np.ascontiguousarray(x), rows(num_rows, width, form)
    out = np.zeros((num_rows, matrix.padded_outputs), np.float32)
    if start is not None:
        out[:, : start.shape[1]] = start
    stages = [
        quantize_stage(x=x.ctypes.data, stride=width, width=width, form=form, **places(kept)),
        matmul_stage(
            form, weights=matrix.data.ctypes.data, num_inputs=width, num_outputs=matrix.padded_outputs,
            out=out.ctypes.data, stride=out.shape[1], adds=start is not None,
            bias=0 if bias is None else bias.ctypes.data, **places(kept),
        ),
    ]  # fmt: skip
    Program(stages).run(num_rows, threads)
    return out[:, : matrix.num_outputs], kept


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(("num_rows", "inputs", "outputs"), SHAPES)
def test_a_product_is_that_of_the_stored_numbers_with_the_rounded_rows(form, num_rows, inputs, outputs) -> None:
    raw, weights = stored(form, outputs, inputs)
    x = np.random.default_rng(1).standard_normal((num_rows, inputs)).astype(np.float32)
    found, kept = product(form, pack(unpack_blocks(form, raw)), x)
    rounded = kept.ints * steps(kept).astype(np.float64)
    expected = rounded @ weights.astype(np.float64).T
    size = np.abs(rounded) @ np.abs(weights.astype(np.float64)).T
    assert np.all(np.abs(found - expected) <= 2e-6 * size + 1e-30)


def test_halves_of_groups_are_rounded_as_the_gguf_package_rounds_groups() -> None:
    x = np.random.default_rng(2).standard_normal((7, 96)).astype(np.float32)
    kept = rows(7, 96, integer.Q8_0)
    stage = quantize_stage(x=x.ctypes.data, stride=96, width=96, form=integer.Q8_0, **places(kept))
    Program([stage]).run(7, 1)
    # Each half twice, as a group of theirs.
    doubled = np.repeat(x.reshape(7, -1, 1, 16), 2, axis=2).reshape(7, -1)
    theirs = dequantize(gguf_quantize(doubled, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    theirs = theirs.reshape(7, -1, 2, 16)[:, :, 0].reshape(7, 96)
    ours, step = kept.ints * steps(kept), steps(kept)
    # They round the scale to float16; a value at a border may fall to the other side.
    assert np.all(np.abs(ours - theirs) <= 1.01 * step)
    assert np.all(np.abs(ours - x) <= 0.5001 * step)
    assert np.array_equal(kept.sums, -128 * kept.ints.reshape(7, -1, 16).sum(axis=2, dtype=np.int32))


ALL = (*FORMATS, MIXED_32, MIXED_64)


def some_matrix(form, num_outputs, num_inputs):
    """A packed matrix in a format."""
    if form.mixed:
        weights = np.random.default_rng(5).standard_normal((num_outputs, num_inputs)).astype(np.float32)
        return pack(quantize(weights, form=form))
    return pack(unpack_blocks(form, stored(form, num_outputs, num_inputs)[0]))


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
def test_a_row_has_the_same_bits_in_any_company(form) -> None:
    width = 3 * form.group
    matrix = some_matrix(form, 40, width)
    x = np.random.default_rng(3).standard_normal((67, width)).astype(np.float32)
    alone = np.concatenate([product(form, matrix, x[i : i + 1])[0] for i in range(67)])
    for num_rows in (2, 3, 7, 8, 9, 13, 16, 17, 32, 33, 40, 43, 67):
        for threads in (1, 2):
            together, _ = product(form, matrix, x[:num_rows], threads=threads)
            assert np.array_equal(together.view(np.uint32), alone[:num_rows].view(np.uint32))
            start = together + 1
            added, _ = product(form, matrix, x[:num_rows], threads=threads, start=start)
            assert np.array_equal(added, start + together)


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
@pytest.mark.parametrize("num_rows", [11, 40])
def test_without_vector_products_of_bytes_the_bits_are_the_same(form, num_rows, monkeypatch) -> None:
    width = 3 * form.group
    matrix = some_matrix(form, 16, width)
    x = np.random.default_rng(4).standard_normal((num_rows, width)).astype(np.float32)
    native, _ = product(form, matrix, x)
    monkeypatch.setattr(integer, "has_vnni", lambda: False)
    monkeypatch.setattr(grouped_matmul, "has_amx", lambda: False)
    # Not kept on disk, where the next process would find it.
    monkeypatch.setattr(grouped_matmul.team, "compiled", _compiled_anew)
    monkeypatch.setattr(grouped_matmul, "_kernel", grouped_matmul._kernel.__wrapped__)
    plain, _ = product(form, matrix, x)
    assert np.array_equal(plain.view(np.uint32), native.view(np.uint32))


def _compiled_anew(function):
    import numba
    from numba import types

    made = numba.cfunc(types.void(types.voidptr), error_model="numpy")(function)
    _KEPT.append(made)
    return grouped_matmul.team.Launcher(made.address)


_KEPT: list[object] = []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_its_own_row_only(bad) -> None:
    form = integer.Q4_1
    raw, _ = stored(form, 16, 64)
    matrix, x = pack(unpack_blocks(form, raw)), np.ones((9, 64), np.float32)
    x[4, 33] = bad
    found, _ = product(form, matrix, x)
    assert np.isnan(found[4]).all()
    assert np.isfinite(np.delete(found, 4, axis=0)).all()


def test_a_product_may_be_added_and_have_a_bias() -> None:
    form = integer.Q8_0
    raw, _ = stored(form, 20, 64)
    matrix = pack(unpack_blocks(form, raw))
    random = np.random.default_rng(5)
    x, start = random.standard_normal((5, 64)).astype(np.float32), random.standard_normal((5, 20)).astype(np.float32)
    bias = np.zeros(matrix.padded_outputs, np.float32)
    bias[:20] = random.standard_normal(20)
    plain, _ = product(form, matrix, x)
    both, _ = product(form, matrix, x, bias=bias, start=start)
    assert np.array_equal(both, (start + plain) + bias[:20])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_embedding_gives_the_stored_rows(form) -> None:
    raw, values = stored(form, 37, 96)
    matrix = pack(unpack_blocks(form, raw))
    tokens, out = np.array([36, 0, 17, 16, 15, 36]), np.zeros((6, 96), np.float32)
    stage = embedding_stage(form, weights=matrix.data.ctypes.data, width=96, out=out.ctypes.data)
    program = Program([stage])
    program.frame[TOKENS] = tokens.ctypes.data
    program.run(6, 2)
    assert np.array_equal(out, values[tokens])
    assert np.array_equal(unpack_blocks(form, raw).values(), values)


# The matrix of Sylvester's construction by its closed form: signs are parities of the common bits of row and column.
HADAMARD = {
    size: np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]) / np.sqrt(size)
    for size in (32, 64)
}


def _mixed(x, size):
    return (x.reshape(len(x), -1, size).astype(np.float64) @ HADAMARD[size]).reshape(x.shape)


@pytest.mark.parametrize(("inputs", "form"), [(128, MIXED_64), (96, MIXED_32)], ids=["64", "32"])
def test_floats_become_the_nearest_steps_of_their_mixed_groups(inputs, form) -> None:
    weights = np.random.default_rng(6).standard_normal((21, inputs)).astype(np.float32)
    weights[3, form.group : 2 * form.group] = 0
    groups = quantize(weights, form=form)
    step = np.repeat(groups.deltas_OG.astype(np.float32), form.group, axis=1)
    assert groups.form == form
    stands_for = (groups.ints_OI.astype(np.float64) - 128) * step
    assert np.all(np.abs(stands_for - _mixed(weights, form.group)) <= 0.502 * step)
    assert np.allclose(groups.values(), _mixed(stands_for, form.group), atol=1e-6)


@pytest.mark.parametrize("form", [integer.Q4_0, integer.Q4_1], ids=lambda form: form.name)
def test_stored_four_bits_stay_what_they_are_in_mixed_groups_of_32(form) -> None:
    """A group is m + d q: mixed, all but its first value are integers times d / sqrt(32)."""
    kind = GGMLQuantizationType[form.name.upper()]
    weights = np.random.default_rng(14).standard_normal((64, 96)).astype(np.float32)
    raw = gguf_quantize(weights * np.logspace(-2, 1, 64, dtype=np.float32)[:, None], kind)
    values, grid = dequantize(raw, kind), unpack_blocks(form, raw.reshape(64, 3, -1)).grid_OG
    assert grid is not None
    # Two groups whose largest sum is beyond a byte: one step is not enough for them.
    values[60, :32] = np.where(HADAMARD[32][5] > 0, 15, 0)
    values[61, 32:64] = -values[60, :32]
    grid[60, 0] = grid[61, 1] = 1.0
    groups, without = quantize(values, grid_OG=grid), quantize(values)
    mixed = _mixed(values, 32).reshape(64, 3, 32)
    steps_OG = groups.deltas_OG.astype(np.float64)
    wrong = np.abs((groups.ints_OI.reshape(64, 3, 32).astype(np.float64) - 128) * steps_OG[..., None] - mixed)
    fits = np.abs(mixed).max(axis=2) < 127 * grid / np.sqrt(32)
    assert fits[:60].mean() > 0.95 and not fits[60, 0] and not fits[61, 1]
    # What is left of the others is the step's own rounding to float16.
    assert np.all(wrong[..., 1:][fits] <= 2**-10 * np.abs(mixed[..., 1:][fits]) + 1e-6 * steps_OG[fits][:, None])
    assert np.all(wrong <= 0.51 * steps_OG[..., None])
    assert np.array_equal(groups.deltas_OG[~fits], without.deltas_OG[~fits])
    lost, lost_without = (np.square((g.values() - values)[:60] / grid[:60, :1]).mean() for g in (groups, without))
    assert lost < 0.2 * lost_without


@pytest.mark.parametrize(("num_rows", "inputs", "outputs"), SHAPES)
def test_a_mixed_product_is_that_of_the_mixed_rows_and_weights(num_rows, inputs, outputs) -> None:
    random = np.random.default_rng(11)
    weights, x = (random.standard_normal((n, inputs)).astype(np.float32) for n in (outputs, num_rows))
    groups = quantize(weights, form=MIXED_32 if inputs % 64 else MIXED_64)
    found, kept = product(groups.form, pack(groups), x)
    rounded = kept.ints * steps(kept).astype(np.float64)
    assert np.all(np.abs(rounded - _mixed(x, groups.form.group)) <= 0.501 * steps(kept))
    deltas = np.repeat(groups.deltas_OG.astype(np.float64), groups.form.group, axis=1)
    matrix = (groups.ints_OI.astype(np.float64) - 128) * deltas
    expected, size = rounded @ matrix.T, np.abs(rounded) @ np.abs(matrix.T)
    assert np.all(np.abs(found - expected) <= 2e-6 * size + 1e-30)
    # x w = (x H) (w H): what is left is rounding.
    assert np.abs(found - x.astype(np.float64) @ weights.T).max() <= 0.05 * np.sqrt(inputs)


def test_a_large_value_costs_a_mixed_product_less() -> None:
    random = np.random.default_rng(12)
    weights, x = (random.standard_normal((n, 96)).astype(np.float32) for n in (48, 20))
    x[:, 40] *= 30
    raw, stored_weights = stored(integer.Q8_0, 48, 96)
    plain = (
        product(integer.Q8_0, pack(unpack_blocks(integer.Q8_0, raw)), x)[0] - x.astype(np.float64) @ stored_weights.T
    )
    groups = quantize(weights)
    mixed = product(groups.form, pack(groups), x)[0] - x.astype(np.float64) @ groups.values().T.astype(np.float64)
    of_plain = np.square(plain).mean() / np.square(stored_weights).mean()
    assert np.square(mixed).mean() / np.square(weights).mean() < 0.5 * of_plain


def test_the_embedding_of_a_mixed_matrix_gives_back_its_rows() -> None:
    groups = quantize(np.random.default_rng(13).standard_normal((37, 96)).astype(np.float32))
    matrix, tokens, out = pack(groups), np.array([36, 0, 17, 16, 15, 36]), np.zeros((6, 96), np.float32)
    stage = embedding_stage(groups.form, weights=matrix.data.ctypes.data, width=96, out=out.ctypes.data)
    program = Program([stage])
    program.frame[TOKENS] = tokens.ctypes.data
    program.run(6, 2)
    assert np.array_equal(out, groups.values()[tokens])


def test_norm_and_gate_end_in_the_groups_of_their_float64_values() -> None:
    random = np.random.default_rng(8)
    x, weight = random.standard_normal((6, 64)).astype(np.float32), random.standard_normal(64).astype(np.float32)
    scratch, kept = np.zeros((2, 64), np.float32), rows(6, 64, integer.Q4_1)
    stage = norm_quantize_stage(
        x=x.ctypes.data, stride=64, width=64, form=integer.Q4_1, weight=weight.ctypes.data, eps=1e-5,
        scratch=scratch.ctypes.data, **places(kept),
    )  # fmt: skip
    Program([stage]).run(6, 2)
    normed = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * weight
    _close_to_groups(kept, normed)
    gate_up = (4 * random.standard_normal((6, 128))).astype(np.float32)
    gate_up[0, 0], gate_up[0, 1] = -200.0, 200.0
    stage = gate_quantize_stage(
        x=gate_up.ctypes.data, width=64, form=integer.Q4_1, scratch=scratch.ctypes.data, **places(kept)
    )
    Program([stage]).run(6, 2)
    gate, up = gate_up[:, :64].astype(np.float64), gate_up[:, 64:].astype(np.float64)
    with np.errstate(over="ignore"):
        _close_to_groups(kept, gate / (1 + np.exp(-gate)) * up)


def _close_to_groups(kept, expected) -> None:
    assert np.all(np.abs(kept.ints * steps(kept) - expected) <= 0.501 * steps(kept))
    # Weights with minima want s * (sum of p) instead, of both halves together.
    parts = kept.scales * kept.ints.reshape(*kept.scales.shape, 16).sum(axis=2).astype(np.float32)
    assert np.array_equal(kept.sums.view(np.float32)[:, ::2], parts[:, ::2] + parts[:, 1::2])
