"""Measures what precision modes cost in quality, next to llama.cpp's Q8_0 and Q4_1 of the same model.

Usage: python -m benchmarks.quality [MODEL] [--modes bfloat16,w8a8,...] [--num-tokens 4096] [--json FILE] [--page FILE]

Every system reads the same windows of real text; its logits at every position are compared with those of the engine in
float32: mean KL divergence in nats, how often the most likely token is the same, and perplexity. llama.cpp runs in the
environment of `make bench-peers`; without it the table says so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.environments import Missing, environment
from benchmarks.peers.process import Child
from benchmarks.peers.q8_file import write_q8_0
from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model
from torch import Tensor

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.registry import find_model
from octavo_worker.plugins import build_engine
from octavo_worker.runtime.build import BuiltEngine, EngineConfig

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "quality"
WINDOW = 256
# Most that a mode's KL may be: times that of another system.
BOUNDS = {"w8a8": ("llama.cpp Q8_0", 1.5), "w4a8": ("llama.cpp Q4_1", 1.1), "w4a16": ("w4a8", 1.0)}
# The same, in nats.
MODE_KL = {"bfloat16": 0.003}
AUTO_KL = 0.01
System = Callable[[list[int]], Tensor]
"""Logits ``[T, V]`` after each token of a text."""


def real_windows(tokenizer: Tokenizer, num_tokens: int) -> list[list[int]]:
    """Windows of a licence and of the language reference that comes with Python, in equal parts."""
    reference = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    windows: list[list[int]] = []
    for text in ((ROOT / "LICENSE").read_text(encoding="utf-8"), reference[: 8 * num_tokens]):
        ids = tokenizer.encode(text, add_special=False)[: num_tokens // 2]
        windows += [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]
    return windows


class OwnEngine:
    """The engine itself: a prompt whose log-probabilities are wanted, so that every position's logits are computed."""

    def __init__(self, model: Path, precision: str, threads: int | None) -> None:
        self.built: BuiltEngine = build_engine(
            EngineConfig(model_path=model, precision=precision, num_threads=threads, kv_bytes=64 << 20)
        )
        executor: Any = self.built.engine._executor  # its logits are told nowhere else
        self._tap = executor._runner = _Tap(executor._runner)
        self._number = 0

    def __call__(self, tokens: list[int]) -> Tensor:
        """Logits after each token."""
        self._number += 1
        params = SamplingParams(max_tokens=1, num_prompt_logprobs=0)
        self.built.engine.add(Request(id=str(self._number), prompt=tuple(tokens), params=params))
        self._tap.steps.clear()
        while self.built.engine.has_work:
            for delta in self.built.engine.step():
                assert delta.error is None, delta.error
        return torch.cat(
            [self._tap.steps[i][j] for i in range(len(self._tap.steps)) for j in sorted(self._tap.steps[i])]
        )


class _Tap:
    """A runner that keeps a copy of all logits by step and position in the step."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.steps: list[dict[int, Tensor]] = []

    def forward(self, inputs: Any) -> Tensor:
        self.steps.append({})
        return self._runner.forward(inputs)

    def logits(self, hidden_TD: Tensor, counts_R: list[int], wanted_S: Tensor) -> Iterator[tuple[slice, Tensor]]:
        done = 0
        for rows, logits_SV in self._runner.logits(hidden_TD, counts_R, wanted_S):
            for position, row in zip(wanted_S[done:].tolist(), logits_SV, strict=False):
                self.steps[-1][position] = row.float().clone()[None]
            done += logits_SV.shape[0]
            yield rows, logits_SV

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class LlamaCpp:
    """llama.cpp in its own environment."""

    def __init__(self, child: Child, model: Path, threads: int, folder: Path) -> None:
        self._child = child
        self._path = folder / f"{model.stem}.npy"
        self.version = str(child("load", model=str(model), threads=threads)["version"])

    def __call__(self, tokens: list[int]) -> Tensor:
        """Logits after each token."""
        self._child("logits", tokens=tokens, path=str(self._path))
        return torch.from_numpy(np.load(self._path))


@dataclass(slots=True)
class Measured:
    """What was found so far of one system."""

    kls: list[Tensor] = field(default_factory=list)
    agreements: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(self, expected_TV: Tensor, logits_TV: Tensor, tokens: list[int]) -> None:
        """One window; log-probabilities of the reference, logits of the system."""
        assert logits_TV.shape == expected_TV.shape, (logits_TV.shape, expected_TV.shape)
        found_TV = logits_TV.double().log_softmax(-1)
        self.kls.append((expected_TV.exp() * (expected_TV - found_TV)).sum(-1))
        self.agreements.append((expected_TV.argmax(-1) == found_TV.argmax(-1)).double())
        self.losses.append(-found_TV[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0])

    def figures(self) -> dict[str, float]:
        """Means over all positions."""
        kl = torch.cat(self.kls)
        return {
            "kl": kl.mean().item(),
            "kl_p99": kl.quantile(0.99).item(),
            "top1": torch.cat(self.agreements).mean().item(),
            "perplexity": torch.cat(self.losses).mean().exp().item(),
        }


def measure(systems: Mapping[str, System], reference: str, windows: list[list[int]]) -> dict[str, dict[str, float]]:
    """Figures of all systems against one of them."""
    found = {name: Measured() for name in systems}
    for tokens in windows:
        exact = systems[reference](tokens)
        expected = exact.double().log_softmax(-1)
        for name, system in systems.items():
            found[name].add(expected, exact if name == reference else system(tokens), tokens)
    return {name: measured.figures() for name, measured in found.items()}


def table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Rows in Markdown."""
    lines = ["| system | mean KL, nats | 99th percentile | top-1 agreement | perplexity |", "|---|---|---|---|---|"]
    return lines + [
        f"| {name} | {f['kl']:.5f} | {f['kl_p99']:.4f} | {f['top1']:.4f} | {f['perplexity']:.3f} |"
        for name, f in found.items()
    ]


def checks_of(found: Mapping[str, Mapping[str, float]], auto: str) -> list[Check]:
    """What is promised of the modes that were measured."""
    checks = [
        Check(name=f"KL of {mode} / of {peer}", value=found[mode]["kl"] / found[peer]["kl"], at_most=bound)
        for mode, (peer, bound) in BOUNDS.items()
        if mode in found and peer in found
    ]
    checks += [
        Check(name=f"KL of {mode}", value=found[mode]["kl"], at_most=bound)
        for mode, bound in MODE_KL.items()
        if mode in found
    ]
    if auto in found:
        checks.append(Check(name=f"KL of what auto picks ({auto})", value=found[auto]["kl"], at_most=AUTO_KL))
    return checks


def page(result: Result, found: Mapping[str, Mapping[str, float]]) -> str:
    """The page in Markdown."""
    settings = result.settings
    lines = [
        "# What the precision modes cost in quality",
        "",
        "Repeat with `python -m benchmarks.quality --page docs/quality.md` after `make bench-peers` has set up "
        f"llama.cpp. Written by it on {result.machine['processor']}.",
        "",
        f"{settings['num_tokens']} tokens of real text in windows of {WINDOW} (the Apache licence, and the language "
        "reference that comes with Python, in equal parts; each window begins anew), the demo model. Every system's "
        "logits at every position against those of the engine in float32, computed from the same Q4_1 file: `w4a8`, "
        "`w4a16` and llama.cpp's Q4_1 use its 4-bit weights as stored, `bfloat16`, `w8a8` and Q8_0 are made from the "
        "float32 values that they stand for. Keys and values are int8 in `w8a8` and `w4a8`, bfloat16 in `bfloat16` "
        "and `w4a16` (which give the same bits) and F16 in llama.cpp (its default).",
        "",
        *table(found),
        "",
        "| promise | found | asked for | holds |",
        "|---|---|---|---|",
        *(f"| {c.name} | {c.value:.4g} | <= {c.at_most} | {'yes' if c.holds else '**no**'} |" for c in result.checks),
        "",
        f"llama.cpp: {settings['llama']}. Text: sha256 of the token ids {settings['text_digest']}.",
    ]
    return "\n".join(lines) + "\n"


def llama_systems(stack: ExitStack, model: Path, threads: int) -> tuple[dict[str, System], str]:
    """llama.cpp with both files, and its version or the reason why it is not there."""
    try:
        python = environment("llama-cpp").python
    except Missing as missing:
        return {}, f"not measured: {missing}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    q8_0 = FOLDER / f"{model.stem}.Q8_0.gguf"
    write_q8_0(model, q8_0)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found: dict[str, System] = {}
    version = ""
    for name, file in (("llama.cpp Q8_0", q8_0), ("llama.cpp Q4_1", model)):
        log = FOLDER / f"{name.replace(' ', '-')}.log"
        child = stack.enter_context(Child(python, "llama_cpp_child.py", env={}, log=log))
        system = found[name] = LlamaCpp(child, file, threads, folder)
        version = system.version
    return found, version


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file in Q4_1; default: the demo model")
    parser.add_argument("--modes", default="bfloat16,w8a8,w4a8,w4a16")
    parser.add_argument("--num-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    model = find_model((args.model or demo_model()).resolve())
    reference = OwnEngine(model, "float32", args.threads)
    systems: dict[str, System] = {"float32": reference}
    systems |= {mode: OwnEngine(model, mode, args.threads) for mode in args.modes.split(",") if mode}
    windows = real_windows(Tokenizer(reference.built.bundle), args.num_tokens)
    with ExitStack() as stack:
        peers, llama = llama_systems(stack, model, args.threads)
        found = measure(systems | peers, "float32", windows)
    settings = {
        "model": reference.built.card.name,
        "num_tokens": sum(map(len, windows)),
        "text_digest": hashlib.sha256(repr(windows).encode()).hexdigest()[:16],
        "llama": llama,
    }
    figures = {f"{name} {figure}": value for name, f in found.items() for figure, value in f.items()}
    auto = OwnEngine(model, "auto", args.threads).built.loaded.precision
    result = Result(benchmark="quality", settings=settings, figures=figures, checks=tuple(checks_of(found, auto)))
    if args.page is not None:
        args.page.write_text(page(result, found), encoding="utf-8")
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
