"""What transformers says: greedy answers with their logits, and the rule for differences that rounding may cause."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROMPTS = Path(__file__).parent / "data" / "prompts.txt"
_BETWEEN_PROMPTS = "\n%%%%%%%%\n"

# Largest difference of two logits that rounding in float32 may turn around.
TIE = 1e-3


def read_prompts() -> list[str]:
    """Twenty real prompts of 3 to 900 tokens."""
    return PROMPTS.read_text(encoding="utf-8").split(_BETWEEN_PROMPTS)


@dataclass
class Reference:
    """A transformers model. Answers are kept on disk between sessions under a key that names model and version."""

    model: Callable[[], Any]
    cache_dir: Path
    key: str
    _loaded: Any = field(default=None, init=False)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What `generate` answers, never ending early."""
        import transformers

        parts = json.dumps([self.key, list(prompt), num_tokens, transformers.__version__, torch.__version__])
        file = self.cache_dir / f"{hashlib.sha256(parts.encode()).hexdigest()[:24]}.json"
        if file.is_file():
            return json.loads(file.read_text())
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            answer = self._get().generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens = answer[0, len(prompt) :].tolist()
        assert len(tokens) == num_tokens
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(tokens))
        return tokens

    def logits(self, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        """Float64 logits ``[len(answer), V]`` from which each token of an answer is chosen, in one pass over all."""
        ids = torch.tensor([[*prompt, *answer]])
        with torch.inference_mode():
            logits = self._get()(ids).logits[0, len(prompt) - 1 : -1]
        return logits.double().numpy()

    def _get(self) -> Any:
        if self._loaded is None:
            self._loaded = self.model()
        return self._loaded


@dataclass
class TieRule:
    """Compares answers; a difference must be a tie of the reference, is proven with its logits, and is counted."""

    reference: Reference
    num_compared: int = 0
    ties: list[str] = field(default_factory=list)
    _known: set[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)

    def check_greedy(self, name: str, prompt: Sequence[int], answer: Sequence[int], num_tokens: int) -> None:
        """Each token is the one that the reference finds best after the same tokens, or within a tie of it.

        One pass over prompt and answer; an answer that was found right is not looked at again.
        """
        assert len(answer) == num_tokens, f"{name}: {len(answer)} tokens instead of {num_tokens}"
        self.num_compared += 1
        pair = tuple(prompt), tuple(answer)
        if pair not in self._known:
            self._prove(name, answer, self.reference.logits(prompt, answer))
            self._known.add(pair)

    def check_generated(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The answer is what the reference's own `generate` gives, or parts from it at a tie."""
        self.num_compared += 1
        if list(answer) != self.reference.greedy(prompt, len(answer)):
            self._prove(name, answer, self.reference.logits(prompt, answer))

    def check_drawn(
        self,
        name: str,
        prompt: Sequence[int],
        answer: Sequence[int],
        expected: Sequence[int],
        scores: Callable[[int, np.ndarray], np.ndarray],
    ) -> None:
        """Two draws of one seeded request are equal, or part at a tie of `scores(index, logits_V)`, noise included."""
        assert len(answer) == len(expected), name
        self.num_compared += 1
        if list(answer) != list(expected):
            logits = self.reference.logits(prompt, answer)
            self._prove(name, answer, np.stack([scores(index, row) for index, row in enumerate(logits)]))

    def _prove(self, name: str, answer: Sequence[int], scores: np.ndarray) -> None:
        lacks = scores.max(axis=1) - scores[np.arange(len(answer)), list(answer)]
        assert lacks.max() < TIE, f"{name}: token {lacks.argmax()} is {lacks.max():.2e} below the best"
        if lacks.max() > 0:
            self.ties.append(f"{name}: token {lacks.argmax()} at a tie of {lacks.max():.1e}")

    def summary(self) -> str:
        """One line for the log of the run."""
        return f"{self.num_compared} answers compared, {len(self.ties)} ties: {'; '.join(self.ties) or 'none'}"
