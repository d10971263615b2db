"""Builds engines around loaded models and collects what they answer. Blocks hold NaN until they are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.base import LoadedModel
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.build import BLOCK_SIZE, EngineConfig, assemble


class EngineBench:
    """One engine with a pool of some blocks."""

    def __init__(self, loaded: LoadedModel, *, num_blocks: int = 1024, **settings) -> None:
        model = loaded.config
        block_bytes = 2 * 4 * model.num_layers * BLOCK_SIZE * model.num_kv_heads * model.head_dim
        config = EngineConfig(
            model_path=Path(),
            kv_bytes=num_blocks * block_bytes,
            poison_fresh_blocks=True,
            **settings,
        )
        self.built = assemble(config, loaded, attention_backends)
        self.engine = self.built.engine
        self.tokens: dict[str, list[int]] = {}
        self.errors: dict[str, str] = {}
        self.num_cached: dict[str, int] = {}
        self.num_preemptions = 0

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, *, salt: str = "", **params) -> None:
        """Submit a request that never ends early; greedy unless said otherwise."""
        self.tokens[name] = []
        request = Request(
            id=name, prompt=tuple(prompt), params=SamplingParams(max_tokens=max_tokens, **params), salt=salt
        )
        self.take(self.engine.add(request))

    def step(self) -> None:
        """One step, with the books checked."""
        self.take(self.engine.step())
        self.engine.check_integrity()

    def take(self, deltas) -> None:
        for delta in deltas:
            name = delta.id.request
            self.tokens[name] += delta.tokens
            if delta.error is not None:
                self.errors[name] = delta.error
            self.num_cached[name] = max(self.num_cached.get(name, 0), delta.num_cached)
            self.num_preemptions += delta.events.count("preempted")

    def run(self) -> None:
        """Step until all have ended; no block is left in use."""
        while self.engine.has_work:
            self.step()
        assert self.engine.stats().num_used_blocks == 0
