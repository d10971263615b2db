"""The best token of each row, without randomness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def best_tokens(logits_SV: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Id of the largest logit of each row (the lowest among equals), and whether the row can be trusted.

    A row with a NaN, or whose largest logit is infinite, cannot.
    """
    best_S, ids_S = logits_SV.max(dim=-1)  # NaN counts as the largest; of equals the first index is returned
    return ids_S.numpy(), torch.isfinite(best_S).numpy()
