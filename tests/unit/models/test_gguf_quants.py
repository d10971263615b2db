from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from octavo_worker.models.gguf_quants import SUPPORTED, dequantize

# Largest error of a weight, as a share of the largest weight of its block.
QUANTISED = {"F16": 0.001, "BF16": 0.005, "Q4_0": 0.14, "Q4_1": 0.08, "Q5_0": 0.07, "Q5_1": 0.04, "Q8_0": 0.005}


def _decode(kind: GGMLQuantizationType, raw: np.ndarray) -> np.ndarray:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    out = np.full(raw.size // block_bytes * block, np.nan, dtype=np.float32)
    dequantize(kind, raw.reshape(-1), out)
    return out


def _random_blocks(kind: GGMLQuantizationType, num_blocks: int) -> np.ndarray:
    """Blocks of random bits; float16 scales are kept finite."""
    rng = np.random.default_rng(int(kind))
    _, block_bytes = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
    for at in halves.get(kind.name, []):
        raw[:, at : at + 2] = rng.normal(size=num_blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
    if kind.name in ("F32", "F16", "BF16"):
        values = rng.normal(size=num_blocks).astype(np.float32).reshape(-1, 1)
        raw = gguf.quants.quantize(values, kind).view(np.uint8).reshape(num_blocks, block_bytes)
    return raw


def test_every_type_that_the_platform_promises_is_there() -> None:
    names = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"}
    assert {kind.name for kind in SUPPORTED} == names


@pytest.mark.parametrize("kind", sorted(SUPPORTED), ids=lambda kind: kind.name)
def test_random_blocks_decode_to_the_very_floats_of_the_gguf_package(kind: GGMLQuantizationType) -> None:
    raw = _random_blocks(kind, 257)
    theirs = gguf.quants.dequantize(raw, kind).reshape(-1).astype(np.float32)
    assert np.isfinite(theirs).all()
    np.testing.assert_array_equal(_decode(kind, raw), theirs)


@pytest.mark.parametrize("name", QUANTISED)
def test_weights_come_back_within_the_type_s_precision(name: str) -> None:
    kind = GGMLQuantizationType[name]
    weights = np.random.default_rng(3).normal(size=(16, 256)).astype(np.float32)
    raw = np.ascontiguousarray(gguf.quants.quantize(weights, kind)).view(np.uint8)
    blocks = weights.reshape(-1, 32)
    error = np.abs(_decode(kind, raw).reshape(-1, 32) - blocks).max(axis=1)
    assert (error <= QUANTISED[name] * np.abs(blocks).max(axis=1)).all()
