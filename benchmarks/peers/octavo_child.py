"""Octavo's engine in this process, in one precision mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from child import serve

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.plugins import build_engine
from octavo_worker.runtime.build import BuiltEngine, EngineConfig

loaded: dict[str, BuiltEngine] = {}
numbers = iter(range(1 << 62))


def load(model: str, threads: int, precision: str) -> dict[str, Any]:
    """Load a model."""
    built = loaded["built"] = build_engine(
        EngineConfig(model_path=Path(model), num_threads=threads, precision=precision)
    )
    return {"version": f"Octavo {built.card.numerics_id}", "numerics_id": built.card.numerics_id}


def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Continue all prompts at once, greedily, past the end of sequence."""
    engine = loaded["built"].engine
    # A salt of its own for each run: no run finds the prefixes of another.
    salt = str(next(numbers))
    outputs: dict[str, list[int]] = {f"{salt}-{i}": [] for i in range(len(prompts))}
    started = time.perf_counter()
    for name, prompt in zip(outputs, prompts, strict=True):
        params = SamplingParams(max_tokens=max_tokens)
        engine.add(Request(id=name, prompt=tuple(prompt), params=params, salt=salt))
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise RuntimeError(delta.error)
            outputs[delta.id.request].extend(delta.tokens)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": list(outputs.values())}


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
