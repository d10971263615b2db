"""Scales of weights by the error of the layer's output (SeqMSE), and rounding that makes up for its own errors.

The squared error of a layer's output over all tokens is ``sum_t |(W - Q) x_t|^2 = trace((W - Q) G (W - Q)^T)`` with
the Gram matrix ``G = sum_t x_t x_t^T`` of its inputs, so a candidate costs the same whatever the number of tokens.
Inputs must be those that the already quantised layers before produce; who collects them decides that.
Shapes: O output channels, I inputs, B blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.grid import INT8, Floats, IntGrid, Ints, dequantise, quantise
from octavo_edge.quant.weights import (
    BlockScales,
    ChannelScales,
    LpbqScales,
    Scales,
    block_scales,
    channel_scales,
    largest_int_scale,
    lpbq_from_blocks,
)

_COLUMNS = 64  # columns between updates of the rest of the matrix
_DAMPING = 0.01  # of the mean diagonal: inputs that never varied make G singular
# Of a sketch of G: columns for each input, and the least eigenvalue that is told from the noise of float32 products.
_SKETCHED, _LEAST_COLUMNS, _LEAST_EIGENVALUE = 1 / 8, 64, 1e-5
_ROUNDING = 0.999  # a bound's own rounding error must not hide the best


class Gram:
    """The sum of x x^T over the tokens seen.

    Products of a batch are float32: an entry's error is relative to the terms of that entry, so a spike in one input
    costs the others nothing. Batches are added in float64.
    """

    def __init__(self, num_inputs: int) -> None:
        self._sum = np.zeros((num_inputs, num_inputs), dtype=np.float64)
        self.num_tokens = 0

    def add(self, inputs_TI: NDArray[Any]) -> None:
        """See the inputs of more tokens."""
        inputs = np.asarray(inputs_TI, dtype=np.float32)
        self._sum += inputs.T @ inputs
        self.num_tokens += len(inputs)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """G [I, I]."""
        return self._sum


def output_error(weight_OI: Floats, approximation_OI: Floats, gram_II: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared error of each channel's output over the tokens of G, [O]."""
    difference = weight_OI.astype(np.float64) - approximation_OI
    return _quadratic(difference, gram_II)


def search_channels(
    weight_OI: Floats, gram_II: NDArray[np.float64], grid: IntGrid, num_candidates: int = 20
) -> ChannelScales:
    """For each channel the best of ``num_candidates`` scales: equal fractions of the MinMax scale, up to all of it."""
    widest = channel_scales(weight_OI, grid).channel
    gram, sketch = _single(gram_II), _sketch(gram_II)
    scales_CO = np.stack([(widest * fraction).astype(np.float32) for fraction in _fractions(num_candidates)])
    least_CO = np.stack(
        [_squares((weight_OI - _nearest(weight_OI, scale[:, None], grid)) @ sketch) for scale in scales_CO]
    )
    # The most promising candidate first. Where the next one's bound is beyond the best, so are all after it.
    order_CO = np.argsort(least_CO, axis=0, kind="stable")
    best, chosen = np.full(len(weight_OI), np.inf), widest.copy()
    rows = np.arange(len(weight_OI))
    for candidates in order_CO:
        rows = rows[least_CO[candidates[rows], rows] * _ROUNDING < best[rows]]
        if not rows.size:
            break
        scale, part = scales_CO[candidates[rows], rows], weight_OI[rows]
        error = _quadratic(part - _nearest(part, scale[:, None], grid), gram)
        better = error < best[rows]
        best[rows[better]], chosen[rows[better]] = error[better], scale[better]
    return ChannelScales(channel=chosen)


def search_blocks(
    weight_OI: Floats, gram_II: NDArray[np.float64], grid: IntGrid, block_size: int, num_candidates: int = 20
) -> BlockScales:
    """For each block the best fraction of its MinMax scale, given the errors of the channel's other blocks."""
    widest = block_scales(weight_OI, grid, block_size)
    candidates = (np.float32(fraction) for fraction in _fractions(num_candidates))
    scales = _descend(weight_OI, gram_II, grid, widest.block, [widest.block * c for c in candidates], block_size)
    return BlockScales(block=scales, block_size=block_size)


def search_lpbq(
    weight_OI: Floats,
    gram_II: NDArray[np.float64],
    grid: IntGrid,
    block_size: int,
    decompressed: IntGrid = INT8,
    num_candidates: int = 20,
) -> LpbqScales:
    """For each block the best integer, on the channel scale that the blocks' own search asks for."""
    free = search_blocks(weight_OI, gram_II, grid, block_size, num_candidates)
    start = lpbq_from_blocks(free, grid, decompressed)
    most = largest_int_scale(grid, decompressed)
    steps = [np.broadcast_to(start.channel[:, None] * np.float32(n), free.block.shape) for n in range(1, most + 1)]
    scales = _descend(weight_OI, gram_II, grid, start.block, steps, block_size)
    integer = np.rint(scales / start.channel[:, None]).astype(np.uint8)
    return LpbqScales(channel=start.channel, integer=integer, block_size=block_size)


def round_with_feedback(weight_OI: Floats, gram_II: NDArray[np.float64], scales: Scales, grid: IntGrid) -> Ints:
    """Integers on fixed scales, column by column: what rounding a column loses is put onto the columns after it.

    That is GPTQ (Frantar et al. 2022). Never worse than the nearest integers: a channel that came out worse keeps them.
    """
    num_inputs = weight_OI.shape[1]
    expanded = np.broadcast_to(scales.expand(num_inputs), weight_OI.shape)
    nearest = quantise(weight_OI, expanded, grid)
    # The strongest inputs first, while there are many others left to make up for their errors.
    order = np.argsort(-np.diag(gram_II), kind="stable")
    fed_back = np.empty_like(nearest)
    ordered_gram = gram_II[np.ix_(order, order)]
    fed_back[:, order] = _feed_back(weight_OI[:, order], ordered_gram, expanded[:, order], grid)
    before = output_error(weight_OI, dequantise(nearest, expanded), gram_II)
    after = output_error(weight_OI, dequantise(fed_back, expanded), gram_II)
    return np.where((after < before)[:, None], fed_back, nearest)


def _feed_back(weight_OI: Floats, gram_II: NDArray[np.float64], scales_OI: Floats, grid: IntGrid) -> Ints:
    num_inputs = weight_OI.shape[1]
    damped = gram_II + np.eye(num_inputs) * max(_DAMPING * float(np.mean(np.diag(gram_II))), 1e-12)
    # Upper Cholesky factor of the inverse: row j holds how the later columns make up for column j.
    feedback = np.linalg.cholesky(np.linalg.inv(damped)).T
    work = weight_OI.astype(np.float64)
    integers = np.empty(weight_OI.shape, dtype=grid.storage)
    for start in range(0, num_inputs, _COLUMNS):
        stop = min(start + _COLUMNS, num_inputs)
        errors = np.empty((len(work), stop - start))
        for column in range(start, stop):
            scale = scales_OI[:, column]
            integers[:, column] = quantise(work[:, column].astype(np.float32), scale, grid)
            error = (work[:, column] - dequantise(integers[:, column], scale)) / feedback[column, column]
            work[:, column + 1 : stop] -= error[:, None] * feedback[column, column + 1 : stop]
            errors[:, column - start] = error
        work[:, stop:] -= errors @ feedback[start:stop, stop:]
    return integers


def _descend(
    weight_OI: Floats,
    gram_II: NDArray[np.float64],
    grid: IntGrid,
    start_OB: Floats,
    candidates_OB: list[Floats],
    block_size: int,
) -> Floats:
    """Block after block takes its best candidate, once: a second round gains next to nothing.

    Error of a block's change: d G_bb d^T + 2 d (G_b,rest e_rest).
    """
    chosen, gram = np.array(start_OB, dtype=np.float32), _single(gram_II)
    rows = np.arange(len(weight_OI))
    error = weight_OI - _nearest(weight_OI, np.repeat(chosen, block_size, axis=1), grid)
    for block in range(chosen.shape[1]):
        columns = slice(block * block_size, (block + 1) * block_size)
        own = gram[columns, columns]
        rest = error @ gram[:, columns] - error[:, columns] @ own
        part = np.ascontiguousarray(weight_OI[:, columns])
        scales_CO1 = np.stack([chosen[:, block], *(candidate[:, block] for candidate in candidates_OB)])[:, :, None]
        differences = part - _nearest(part, scales_CO1, grid)
        products = (differences.reshape(-1, block_size) @ own).reshape(differences.shape)
        losses_CO = np.sum((products + 2 * rest) * differences, axis=2)
        # The first of equal ones: what it was.
        best = np.argmin(losses_CO, axis=0)
        chosen[:, block] = scales_CO1[best, rows, 0]
        error[:, columns] = differences[best, rows]
    return chosen


def _single(gram_II: NDArray[np.float64]) -> Floats:
    """G up to a factor: to rank candidates single precision is enough, but its range is not for massive inputs."""
    return (gram_II / max(float(np.abs(gram_II).max()), 1e-30)).astype(np.float32)


def _sketch(gram_II: NDArray[np.float64]) -> Floats:
    """F [I, columns] with F F^T at most G: what it makes of an error is a lower bound that takes a part of the time.

    The Nystroem approximation of G, scaled as ``_single``, on what G makes of random vectors, where most of it lies.
    Inputs are brought to one size first, so that massive ones do not drown the others in rounding.
    """
    size = np.sqrt(np.diag(gram_II))
    size[size == 0] = 1.0
    alike = gram_II / size[:, None] / size
    columns = min(len(gram_II), max(_LEAST_COLUMNS, int(len(gram_II) * _SKETCHED)))
    random = np.random.default_rng(0).standard_normal((len(gram_II), columns))
    basis, _ = np.linalg.qr((gram_II @ random) * size[:, None])
    image = alike @ basis
    values, vectors = np.linalg.eigh(basis.T @ image)
    kept = values > _LEAST_EIGENVALUE
    factor = size[:, None] * (image @ (vectors[:, kept] / np.sqrt(values[kept])))
    return (factor / np.sqrt(max(float(np.abs(gram_II).max()), 1e-30))).astype(np.float32)


def _squares(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.sum(values * values, axis=1, dtype=np.float64))


def _quadratic(difference_OI: NDArray[Any], gram_II: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.sum((difference_OI @ gram_II) * difference_OI, axis=1, dtype=np.float64))


def _nearest(weight: Floats, scale: Floats, grid: IntGrid) -> Floats:
    return dequantise(quantise(weight, scale, grid), scale)


def _fractions(num_candidates: int) -> Iterable[float]:
    # The widest first: where candidates are equal (inputs that were always 0) nothing is clipped.
    return ((index + 1) / num_candidates for index in reversed(range(num_candidates)))
