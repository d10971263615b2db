"""What is asked of a quantisation in terms of grids and methods, and what comes out of it. Does nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.encodings import ParamEncoding, PerTensor
from octavo_edge.quant.grid import UINT16, Floats, IntGrid, Ints, dequantise
from octavo_edge.quant.placement import WeightKind
from octavo_edge.recipe import Granularity, Method


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """How weights of one kind get their integers.

    ``num_candidates`` 0 takes MinMax, more is SeqMSE with so many; ``feedback`` rounds with error feedback.
    """

    grid: IntGrid
    granularity: Granularity = Granularity.PCQ
    block_size: int | None = None
    num_candidates: int = 0
    feedback: bool = False

    @property
    def needs_inputs(self) -> bool:
        """Whether the layer's inputs decide."""
        return self.num_candidates > 0 or self.feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """How activations get their grids. ``cache`` symmetric if signed; None leaves a kind in floating point."""

    grid: IntGrid | None = UINT16
    cache: IntGrid | None = UINT16
    method: Method = Method.MINMAX
    percentile: float = 99.99
    float_residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantPlan:
    """Everything that is asked. A kind of weight that is absent stays float; ``exceptions`` are by weight name."""

    activations: ActivationPlan = ActivationPlan()
    weights: Mapping[WeightKind, WeightPlan] = field(default_factory=dict)
    exceptions: Mapping[str, WeightPlan] = field(default_factory=dict)
    num_input_batches: int = 4  # of the calibration batches, for methods that look at a layer's inputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantisedWeight:
    """Integers in the layout of the tensor that they replace."""

    integers: Ints
    encoding: ParamEncoding

    def floats(self) -> Floats:
        """What they stand for."""
        return floats_of(self.integers, self.encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """Integers of weights and encodings of all other tensors, by the names of the graph that was calibrated."""

    weights: Mapping[str, QuantisedWeight]
    activations: Mapping[str, PerTensor]
    errors: Mapping[str, float]  # by weight: decibels of its own numbers over what rounding them loses
    # By weight: channels whose scale was raised so that their biases fit 32 bits.
    raised: Mapping[str, int] = field(default_factory=dict)


def floats_of(integers: NDArray[Any], encoding: ParamEncoding) -> Floats:
    """The real numbers that integers of an encoding stand for."""
    if isinstance(encoding, PerTensor):
        return dequantise(integers, encoding.scale, encoding.zero_point)
    scales = encoding.scales
    if scales.ndim == 1:
        return dequantise(integers, scales.reshape([-1 if i == encoding.axis else 1 for i in range(integers.ndim)]))
    matrix = scales if encoding.axis == 1 else scales.T
    matrix = np.repeat(matrix, encoding.block_size, axis=encoding.axis)  # pyright: ignore[reportAttributeAccessIssue]
    return dequantise(integers, matrix.reshape(*matrix.shape, *([1] * (integers.ndim - 2))))
