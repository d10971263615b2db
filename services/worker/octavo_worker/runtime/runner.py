"""One forward pass over a step's tokens: the model, attention over the pool, and logits where they are wanted.

Everything is computed where the pool lies; inputs are brought there. Only what is common to every model belongs here.
T fed tokens, S wanted positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo_worker.attention.base import AttentionBackend
from octavo_worker.models.base import Model
from octavo_worker.runtime.inputs import ForwardInputs
from octavo_worker.runtime.slices import cut_positions


class ModelRunner:
    """A model with its pool of keys and values."""

    def __init__(
        self, *, model: Model, attention: AttentionBackend, kv: Tensor, max_logits_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._model = model
        self._attention = attention
        self._kv = kv
        self._rows_at_once = max(1, max_logits_bytes // (4 * model.config.vocab_size))

    def forward(self, inputs: ForwardInputs) -> Tensor:
        """Hidden states ``[T, D]``; writes the tokens' keys and values into the pool."""
        plan = self._attention.plan(inputs.attention)
        window = self._model.config.window
        device = self._kv.device
        tokens_T, positions_T = inputs.tokens_T.to(device), inputs.positions_T.to(device)
        lengths_T = inputs.prompt_lengths_T.to(device) if self._model.config.needs_prompt_lengths else None

        def attend(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor) -> Tensor:
            return self._attention.attend(q_TNH, k_TGH, v_TGH, self._kv, plan, layer, window(layer))

        with torch.inference_mode():
            return self._model.forward(tokens_T, positions_T, attend, prompt_lengths_T=lengths_T)

    def logits(self, hidden_TD: Tensor, counts_R: list[int], wanted_S: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of the wanted positions as (rows, ``[S, V]``), in slices of bounded bytes that cut no row apart."""
        wanted_S = wanted_S.to(hidden_TD.device)
        for rows, positions in cut_positions(counts_R, self._rows_at_once):
            with torch.inference_mode():
                yield rows, self._model.logits(hidden_TD[wanted_S[positions]])

    def poison(self, blocks: list[int]) -> None:
        """Fill blocks with NaN, so that a wrong mask shows."""
        self._kv[torch.tensor(blocks, dtype=torch.int64, device=self._kv.device)] = torch.nan
