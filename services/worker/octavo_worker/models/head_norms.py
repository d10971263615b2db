"""Norms of the single heads of q and k before they rotate, as Qwen3 has them, and the same for models without.

Legend: T tokens, X heads of q, then of k, H head dim.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

try:
    from octavo_worker.kernels.heads import norm_heads_
except ImportError:  # without numba torch does it in more passes
    norm_heads_ = None


class HeadNorm(Protocol):
    """What becomes of the heads of q and k between their projection and their rotation."""

    def __call__(self, heads_TXH: Tensor) -> None:
        """Change the heads in place."""
        ...


class RmsHeadNorm:
    """Root mean square norm of each head, with a weight for the heads of q and another for those of k."""

    __slots__ = ("_eps", "_weight_XH")

    def __init__(
        self, q_weight_H: Tensor, k_weight_H: Tensor, *, num_heads: int, num_kv_heads: int, eps: float
    ) -> None:
        """The weights' dims must be in the order of the heads' own, pairs side by side."""
        self._weight_XH = q_weight_H.new_empty(num_heads + num_kv_heads, len(q_weight_H))
        self._weight_XH[:num_heads] = q_weight_H
        self._weight_XH[num_heads:] = k_weight_H
        self._eps = eps

    def __call__(self, heads_TXH: Tensor) -> None:
        """Normalise in place."""
        if norm_heads_ is not None:
            norm_heads_(heads_TXH, self._weight_XH, self._eps)
        else:
            heads_TXH.copy_(F.rms_norm(heads_TXH, heads_TXH.shape[2:], eps=self._eps).mul_(self._weight_XH))


class NoHeadNorm:
    """Leaves the heads as they are."""

    __slots__ = ()

    def __call__(self, heads_TXH: Tensor) -> None:
        """Do nothing."""
