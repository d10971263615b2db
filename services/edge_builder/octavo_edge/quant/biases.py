"""Makes biases fit 32 bits: a bias has the scale of the sums that it is added to, which its channel's weights decide.

Where a channel's weights are next to nothing beside its bias, as in projections of Qwen2, that scale is so small that
the bias would need larger integers than there are. Such a channel gets a larger scale, just enough: what its weights
lose by that is less than half a step of the scale for each, 2**-32 of the bias for one step of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.encodings import PerChannel, PerTensor
from octavo_edge.quant.grid import Floats, quantise
from octavo_edge.quant.plan import QuantisedWeight
from octavo_edge.quant.topology import Topology

MOST = np.iinfo(np.int32).max
# The product of two scales is rounded to a float32, and so is each of them.
_MARGIN = 1 + 2.0**-20


def fit_biases(
    graph: Topology, weights: Mapping[str, QuantisedWeight], activations: Mapping[str, PerTensor]
) -> dict[str, tuple[QuantisedWeight, int]]:
    """The weights that cannot hold their biases, with scales that can, and the number of their channels that changed.

    A weight that several convolutions read holds the biases of all.
    """
    least: dict[str, Floats] = {}
    for node in graph.nodes:
        if node.op_type != "Conv" or len(node.input) < 3 or node.input[2] not in graph.constants:
            continue
        source, name = activations.get(node.input[0]), node.input[1]
        weight = weights.get(name)
        if source is None or weight is None or not isinstance(weight.encoding, PerChannel):
            continue
        needed = _least_scales(graph.constant(node.input[2]), source.scale)
        least[name] = np.maximum(least[name], needed) if name in least else needed
    found: dict[str, tuple[QuantisedWeight, int]] = {}
    for name, scales in least.items():
        raised = _with_scales(graph.constant(name), weights[name], scales)
        if raised is not None:
            found[name] = raised
    return found


def _least_scales(bias_O: NDArray[Any], source_scale: float) -> Floats:
    """The least scale of each channel's weights with which its bias fits."""
    needed = np.abs(bias_O.astype(np.float64)) / (MOST * float(np.float32(source_scale))) * _MARGIN
    return needed.astype(np.float32)


def _with_scales(exact: Floats, weight: QuantisedWeight, least_O: Floats) -> tuple[QuantisedWeight, int] | None:
    """The weight with at least these scales; None if it has them."""
    encoding = weight.encoding
    assert isinstance(encoding, PerChannel)
    (rows,) = np.nonzero(encoding.scales < least_O)
    if not rows.size:
        return None
    scales = np.maximum(encoding.scales, least_O)
    integers = np.moveaxis(weight.integers.copy(), encoding.axis, 0)
    values = np.moveaxis(exact, encoding.axis, 0)[rows]
    integers[rows] = quantise(values, scales[rows].reshape(-1, *[1] * (values.ndim - 1)), encoding.grid)
    integers = np.ascontiguousarray(np.moveaxis(integers, 0, encoding.axis))
    return QuantisedWeight(integers=integers, encoding=replace(encoding, scales=scales)), rows.size


def warnings_of(raised: Mapping[str, int]) -> list[str]:
    """What a report says of channels whose scales were raised, by weight."""
    return [
        f"{name}: {num_channels} channels have weights next to nothing beside their biases, and got larger scales, "
        "with which the biases fit 32 bits"
        for name, num_channels in raised.items()
    ]
