"""Products of bfloat16: equal to float64 over torch's own rounding, and the same bits however they are computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_blocks import stored

from octavo_worker.kernels import float_matmul
from octavo_worker.kernels.amx_bf16 import has_amx_bf16
from octavo_worker.kernels.bfloat16 import BFLOAT16
from octavo_worker.kernels.embedding import TOKENS, embedding_stage
from octavo_worker.kernels.float_matmul import float_matmul_stage, scratch_bytes
from octavo_worker.kernels.integer import FORMATS
from octavo_worker.kernels.program import Program
from octavo_worker.kernels.round_rows import gate_round_stage, norm_round_stage, round_stage
from octavo_worker.models.packed import pack, unpack_blocks
from octavo_worker.models.packed_floats import round_to_shorts

SHAPES = [(1, 64, 16), (3, 32, 48), (9, 96, 5), (41, 192, 33), (70, 1536, 17)]
WAYS = [False, pytest.param(True, marks=pytest.mark.amx)]
NATIVE = has_amx_bf16()


def rounded(x):
    """To bfloat16 and back, by torch."""
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().float().numpy()


def bits(x):
    return x.view(np.uint32)


def kept_rows(num_rows, width):
    """Room for rounded rows; the matrix unit reads 16 at once."""
    return np.zeros((num_rows, width), np.float32), np.full((num_rows + 15, width), 0xFFFF, np.uint16)


def product(matrix, x, *, by_tiles=NATIVE, threads=1, bias=None, start=None):
    """Round rows and multiply them, as the engine does it."""
    num_rows, width = x.shape
    x, (floats, shorts) = np.ascontiguousarray(x), kept_rows(num_rows, width)
    out = np.zeros((num_rows, matrix.padded_outputs), np.float32)
    if start is not None:
        out[:, : start.shape[1]] = start
    scratch = np.full(threads * scratch_bytes(width), 255, np.uint8)
    places = {"floats": floats.ctypes.data, "shorts": shorts.ctypes.data}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float_matmul, "has_amx_bf16", lambda: by_tiles)
        stages = [
            round_stage(x=x.ctypes.data, stride=width, width=width, **places),
            float_matmul_stage(
                matrix.form, weights=matrix.data.ctypes.data, num_inputs=width, num_outputs=matrix.padded_outputs,
                out=out.ctypes.data, stride=out.shape[1], scratch=scratch.ctypes.data, adds=start is not None,
                bias=0 if bias is None else bias.ctypes.data, **places,
            ),
        ]  # fmt: skip
    Program(stages).run(num_rows, threads)
    return out[:, : matrix.num_outputs]


@pytest.mark.parametrize("by_tiles", WAYS)
@pytest.mark.parametrize(("num_rows", "inputs", "outputs"), SHAPES)
def test_a_product_is_that_of_rounded_numbers(num_rows, inputs, outputs, by_tiles) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((num_rows, inputs)).astype(np.float32)
    weights = random.standard_normal((outputs, inputs)).astype(np.float32)
    found = product(round_to_shorts(weights).packed(), x, by_tiles=by_tiles)
    expected = rounded(x).astype(np.float64) @ rounded(weights).astype(np.float64).T
    size = np.abs(rounded(x)).astype(np.float64) @ np.abs(rounded(weights)).astype(np.float64).T
    assert np.all(np.abs(found - expected) <= 1e-6 * size)


@pytest.mark.parametrize("by_tiles", WAYS)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_stored_blocks_give_the_bits_of_their_values_in_bfloat16(form, by_tiles) -> None:
    raw, values = stored(form, 40, 96)
    x = np.random.default_rng(2).standard_normal((21, 96)).astype(np.float32)
    packed, plain = pack(unpack_blocks(form, raw)), round_to_shorts(values).packed()
    found = product(packed, x, by_tiles=by_tiles)
    assert np.abs(found).max() > 0.1
    assert np.array_equal(bits(found), bits(product(plain, x, by_tiles=by_tiles)))


@pytest.mark.amx
@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e-20, 1e9])
def test_the_matrix_unit_gives_the_bits_of_the_vectors(scale) -> None:
    """Products of tiny numbers too, which both take for zero when they are subnormal."""
    random = np.random.default_rng(3)
    spread = np.exp(6 * random.standard_normal((33, 192))).astype(np.float32)
    x = (spread * random.standard_normal((33, 192)) * scale).astype(np.float32)
    matrix = round_to_shorts((random.standard_normal((50, 192)) * scale).astype(np.float32)).packed()
    found, expected = (product(matrix, x, by_tiles=by_tiles) for by_tiles in (True, False))
    assert np.isfinite(found).all() and np.abs(found).max() > 0
    assert np.array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("form", [BFLOAT16, FORMATS[2]], ids=lambda form: form.name)
def test_a_row_has_the_same_bits_in_any_company(form) -> None:
    raw, values = stored(FORMATS[2], 40, 96)
    matrix = round_to_shorts(values).packed() if form == BFLOAT16 else pack(unpack_blocks(form, raw))
    x = np.random.default_rng(4).standard_normal((67, 96)).astype(np.float32)
    alone = np.concatenate([product(matrix, x[i : i + 1]) for i in range(67)])
    for num_rows in (2, 3, 4, 5, 8, 15, 16, 17, 33, 67):
        for threads in (1, 2):
            together = product(matrix, x[:num_rows], threads=threads)
            assert np.array_equal(bits(together), bits(alone[:num_rows])), num_rows


@pytest.mark.parametrize("num_rows", [1, 9])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_its_own_row_only(bad, num_rows) -> None:
    matrix = round_to_shorts(np.ones((16, 64), np.float32)).packed()
    x = np.ones((num_rows, 64), np.float32)
    x[-1, 33] = bad
    found = product(matrix, x)
    assert not np.isfinite(found[-1]).any()
    assert np.isfinite(found[:-1]).all()


@pytest.mark.parametrize("num_rows", [2, 20])
def test_a_product_may_be_added_and_have_a_bias(num_rows) -> None:
    random = np.random.default_rng(5)
    matrix = round_to_shorts(random.standard_normal((20, 64)).astype(np.float32)).packed()
    x, start = (random.standard_normal((num_rows, n)).astype(np.float32) for n in (64, 20))
    bias = np.zeros(matrix.padded_outputs, np.float32)
    bias[:20] = random.standard_normal(20)
    both = product(matrix, x, bias=bias, start=start)
    assert np.array_equal(both, (start + product(matrix, x)) + bias[:20])


def test_the_embedding_gives_the_rounded_rows() -> None:
    values = np.random.default_rng(6).standard_normal((37, 96)).astype(np.float32)
    matrix = round_to_shorts(values).packed()
    tokens, out = np.array([36, 0, 17, 16, 15, 36]), np.zeros((6, 96), np.float32)
    program = Program([embedding_stage(BFLOAT16, weights=matrix.data.ctypes.data, width=96, out=out.ctypes.data)])
    program.frame[TOKENS] = tokens.ctypes.data
    program.run(6, 2)
    assert np.array_equal(out, rounded(values)[tokens])
    assert np.array_equal(round_to_shorts(values).values(), rounded(values))


def test_rows_are_rounded_as_torch_rounds_them_but_for_subnormal_numbers() -> None:
    random = np.random.default_rng(7)
    x = random.integers(0, 1 << 32, (50, 64), dtype=np.uint32).view(np.float32)
    # Ties to even in both directions, the largest number, infinities, a NaN whose bits would overflow.
    x[0, :6] = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF], np.uint32).view(
        np.float32
    )
    floats, shorts = kept_rows(50, 64)
    stage = round_stage(x=x.ctypes.data, stride=64, width=64, floats=floats.ctypes.data, shorts=shorts.ctypes.data)
    Program([stage]).run(50, 2)
    expected = rounded(np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x))
    np.testing.assert_array_equal(floats, expected)
    again = (shorts[:50].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(again, expected)


def test_norm_and_gate_end_in_their_float64_values_rounded() -> None:
    random = np.random.default_rng(8)
    x, weight = random.standard_normal((6, 64)).astype(np.float32), random.standard_normal(64).astype(np.float32)
    floats, shorts = kept_rows(6, 64)
    places = {"floats": floats.ctypes.data, "shorts": shorts.ctypes.data}
    stage = norm_round_stage(x=x.ctypes.data, stride=64, width=64, weight=weight.ctypes.data, eps=1e-5, **places)
    Program([stage]).run(6, 2)
    wide = x.astype(np.float64)
    _half_a_step(floats, wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight)
    gate_up = (4 * random.standard_normal((6, 128))).astype(np.float32)
    gate_up[0, 0], gate_up[0, 1] = -80.0, 200.0
    Program([gate_round_stage(x=gate_up.ctypes.data, width=64, **places)]).run(6, 2)
    gate, up = gate_up[:, :64].astype(np.float64), gate_up[:, 64:].astype(np.float64)
    _half_a_step(floats, gate / (1 + np.exp(-gate)) * up)


def _half_a_step(found, expected) -> None:
    assert np.array_equal(found, rounded(found))
    assert np.all(np.abs(found - expected) <= 2.0**-7.99 * np.abs(expected) + 1e-30)
