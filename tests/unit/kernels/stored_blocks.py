"""Matrices as GGUF files store them, with what the gguf package says of them."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize


def stored(form, outputs, inputs, seed=0):
    """Random blocks as a GGUF file has them, and what the gguf package says that they mean."""
    kind = GGMLQuantizationType[form.name.upper()]
    block, size = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (outputs, inputs // block, size)).astype(np.uint8)
    halves = (random.standard_normal((outputs, inputs // block, 2)) * 0.05).astype(np.float16).view(np.uint8)
    num_scales = 4 if form.has_minima else 2
    raw[:, :, :num_scales] = halves[:, :, :num_scales]
    return raw, dequantize(raw.reshape(outputs, -1), kind)
