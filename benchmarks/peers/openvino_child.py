"""OpenVINO GenAI in this process: `ContinuousBatchingPipeline`, straight from the GGUF file."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]  # only in the environment of the peer
import openvino_genai as genai  # pyright: ignore[reportMissingImports]  # only in the environment of the peer
from child import serve

loaded: dict[str, Any] = {}


def load(model: str, threads: int) -> dict[str, Any]:
    """Load a model."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    loaded["pipe"] = genai.ContinuousBatchingPipeline(
        model, scheduler_config=scheduler, device="CPU", properties={"INFERENCE_NUM_THREADS": threads}
    )
    return {"version": f"OpenVINO GenAI {genai.__version__.split('-')[0]}"}


def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Continue all prompts at once, greedily, past the end of sequence."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
    started = time.perf_counter()
    results = loaded["pipe"].generate(inputs, [config] * len(prompts))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": [list(map(int, result.m_generation_ids[0])) for result in results]}


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
