"""Measures a model's precisions on this machine: `python -m octavo_worker.modes MODEL`, for `octavo bench modes`.

Prints one line of JSON on stdout: for each precision the speed with 1, 8 and 32 requests at once, its weights' bytes
and whether it is exact; or why the model cannot be computed so. `auto` does not look at any of it: it goes by rules.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import OctavoError
from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.precision import AUTO, PRECISIONS
from octavo_worker.plugins import build_engine
from octavo_worker.runtime.build import BuiltEngine, EngineConfig

_ROUNDS = 2


def measure(
    path: Path, *, batches: list[int], num_prompt: int, num_output: int, num_threads: int | None, clock: Clock
) -> list[dict[str, Any]]:
    """One entry a precision, in the order of the list of precisions."""
    chosen = _build(path, AUTO, num_threads).loaded.precision
    entries: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        try:
            built = _build(path, precision, num_threads)
        except OctavoError as error:
            entries.append({"precision": precision, "reason": error.message})
            continue
        speeds = {
            str(batch): max(_tokens_per_s(built, batch, num_prompt, num_output, turn, clock) for turn in range(_ROUNDS))
            for batch in batches
        }
        entries.append(
            {
                "precision": precision,
                "is_auto": precision == chosen,
                "exact": built.card.exact,
                "numerics_id": built.card.numerics_id,
                "weight_bytes": built.loaded.weight_bytes,
                "tokens_per_s": speeds,
            }
        )
    return entries


def _build(path: Path, precision: str, num_threads: int | None) -> BuiltEngine:
    return build_engine(EngineConfig(model_path=path, precision=precision, num_threads=num_threads))


def _tokens_per_s(built: BuiltEngine, batch: int, num_prompt: int, num_output: int, turn: int, clock: Clock) -> float:
    """Generated tokens a second, prompts included in the time; no prompt was seen before."""
    for index in range(batch):
        prompt = tuple((7 * index + 13 * place) % built.card.vocab_size for place in range(num_prompt))
        params = SamplingParams(max_tokens=num_output)
        built.engine.add(Request(id=str(index), prompt=prompt, params=params, salt=f"{batch}-{turn}-{index}"))
    started_s, num_tokens = clock.monotonic(), 0
    while built.engine.has_work:
        num_tokens += sum(len(delta.tokens) for delta in built.engine.step())
    return num_tokens / (clock.monotonic() - started_s)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompt", type=_positive, default=128)
    parser.add_argument("--output", type=_positive, default=128)
    parser.add_argument("--threads", type=_positive)
    args = parser.parse_args()
    entries = measure(
        args.model,
        batches=[_positive(batch) for batch in args.batches.split(",")],
        num_prompt=args.prompt,
        num_output=args.output,
        num_threads=args.threads,
        clock=SystemClock(),
    )
    sys.stdout.write(json.dumps(entries) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
