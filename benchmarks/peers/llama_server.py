"""llama.cpp's own HTTP server (continuous batching) in this process, from a prebuilt wheel; until standard input ends.

Usage: llama_server.py MODEL THREADS SLOTS. Prints its address when it answers.
"""

from __future__ import annotations

import os
import sys

import xllamacpp  # pyright: ignore[reportMissingImports]  # only in the environment of the peer

SLOT_TOKENS = 512


def main() -> None:
    model, threads, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    address = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = SLOT_TOKENS * slots, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)
    address.write(server.listening_address + "\n")
    address.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
