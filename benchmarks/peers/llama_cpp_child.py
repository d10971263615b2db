"""llama.cpp in this process, by llama-cpp-python's plain functions: one context, a batch with a row for each request.

The package's own `Llama` class computes one request at a time; llama.cpp itself takes many, as its server does.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]  # only in the environment of the peer
import numpy as np
from child import serve

NUM_BATCH = 512


class Model:
    """A model that is loaded, and contexts over it."""

    def __init__(self, model: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._threads = threads
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(NUM_BATCH, 0, 1)

    def context(self, num_sequences: int, num_tokens: int) -> Any:
        """A context for so many sequences of so many tokens; everything else as llama.cpp has it by itself."""
        params = llama_cpp.llama_context_default_params()
        f16 = llama_cpp.GGML_TYPE_F16
        assert (params.type_k, params.type_v) == (f16, f16), "llama.cpp's keys and values are no longer in F16"
        params.n_ctx = num_sequences * (-(-num_tokens // 256) * 256)
        params.n_seq_max = num_sequences
        params.n_batch = params.n_ubatch = NUM_BATCH
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = num_sequences == 1
        return llama_cpp.llama_init_from_model(self._model, params)

    def decode(self, context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        """Feed rows of (token, position, sequence, whether its logits are wanted)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        code = llama_cpp.llama_decode(context, batch)
        if code:
            raise RuntimeError(f"llama_decode: {code}")

    def logits(self, context: Any, row: int) -> np.ndarray:
        """Logits of a row that wanted them; a view that the next batch overwrites."""
        return np.ctypeslib.as_array(
            ctypes.cast(llama_cpp.llama_get_logits_ith(context, row), ctypes.POINTER(ctypes.c_float)),
            shape=(self.vocab_size,),
        )


loaded: dict[str, Model] = {}


def load(model: str, threads: int) -> dict[str, Any]:
    """Load a model."""
    loaded["model"] = Model(model, threads)
    info = llama_cpp.llama_print_system_info().decode()
    return {"version": f"llama-cpp-python {llama_cpp.__version__}", "build": info}


def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Continue all prompts at once, greedily, past the end of sequence."""
    model = loaded["model"]
    context = model.context(len(prompts), len(prompts[0]) + max_tokens)
    started = time.perf_counter()
    fed = [
        (token, position, sequence, position == len(prompt) - 1)
        for sequence, prompt in enumerate(prompts)
        for position, token in enumerate(prompt)
    ]
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(fed), NUM_BATCH):
        part = fed[start : start + NUM_BATCH]
        model.decode(context, part)
        for row, (_, _, sequence, wanted) in enumerate(part):
            if wanted:
                outputs[sequence].append(int(model.logits(context, row).argmax()))
    for step in range(max_tokens - 1):
        model.decode(context, [(out[-1], len(prompts[i]) + step, i, True) for i, out in enumerate(outputs)])
        for row, output in enumerate(outputs):
            output.append(int(model.logits(context, row).argmax()))
    seconds = time.perf_counter() - started
    llama_cpp.llama_free(context)
    return {"seconds": seconds, "tokens": outputs}


def logits(tokens: list[int], path: str) -> dict[str, Any]:
    """Write the logits after each token of a text to a file of numpy."""
    model = loaded["model"]
    context = model.context(1, len(tokens))
    model.decode(context, [(token, position, 0, True) for position, token in enumerate(tokens)])
    np.save(path, np.stack([model.logits(context, row) for row in range(len(tokens))]))
    llama_cpp.llama_free(context)
    return {}


if __name__ == "__main__":
    serve({"load": load, "generate": generate, "logits": logits})
