"""vLLM for CPU in this process, in bfloat16 from a directory in Hugging Face's form (it reads no GGUF by itself)."""

from __future__ import annotations

import os
import time
from typing import Any

# Before vLLM is imported: the engine in this process, not in one beside it.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm  # pyright: ignore[reportMissingImports]  # only in the environment of the peer
from child import serve

loaded: dict[str, Any] = {}


def load(model: str, threads: int, eager: bool) -> dict[str, Any]:
    """Load a model; threads are bound by VLLM_CPU_OMP_THREADS_BIND. ``eager`` compiles nothing."""
    loaded["llm"] = vllm.LLM(
        model,
        dtype="bfloat16",
        enforce_eager=eager,
        max_model_len=4096,
        max_num_seqs=32,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    return {"version": f"vLLM {vllm.__version__}, bfloat16, {'eager' if eager else 'compiled'}"}


def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Continue all prompts at once, greedily, past the end of sequence."""
    params = vllm.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    started = time.perf_counter()
    results = loaded["llm"].generate(inputs, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": [list(result.outputs[0].token_ids) for result in results]}


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
