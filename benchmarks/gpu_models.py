"""What `gpu_kernels.py` runs end to end: an engine on the GPU, with recorded decode steps and without.

A tiny model of random weights must give the tokens that it gives on the CPU; another one, or a real checkpoint, is
timed while 1, 8 and 32 sequences decode. The same runs at a tiny size in Triton's interpreter, so that it is tested
where no GPU is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from benchmarks.result import Check
from torch import Tensor

from octavo_common.text.bundle import TokenizerBundle
from octavo_worker.engine.types import Request, SamplingParams, SeqId
from octavo_worker.models.base import CPU, CUDA, LoadedModel, ModelConfig, RopeConfig
from octavo_worker.models.checkpoint import Checkpoint, Shape, StoredBlocks
from octavo_worker.models.decoder import num_parameters, tensors
from octavo_worker.models.registry import read_model
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.build import BuiltEngine, EngineConfig, assemble

# The sizes of Llama 3.2 1B.
ONE_BILLION = ModelConfig(
    family="llama",
    num_layers=16,
    hidden=2048,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    intermediate=8192,
    vocab_size=128256,
    rms_eps=1e-5,
    rope=RopeConfig(dim=64, theta=500000.0),
    tie_embeddings=True,
    context_length=8192,
)
# With norms of heads, biases, a window in every other layer, and a head of its own.
TINY_MODEL = ModelConfig(
    family="qwen3",
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate=96,
    vocab_size=200,
    rms_eps=1e-5,
    rope=RopeConfig(dim=32),
    tie_embeddings=False,
    qkv_bias=True,
    head_norms=True,
    windows=(None, 24),
    context_length=512,
)
# A difference of rounding may turn one token around, and all that follow it: of 8 answers one.
LEAST_EQUAL = 0.85
_KV_BYTES, _SMALL_KV_BYTES = 4 << 30, 1 << 22
_BUNDLE = TokenizerBundle(tokenizer_json="{}")


class RandomCheckpoint(Checkpoint):
    """Weights that were never trained: a stretch of random numbers, over and over, scaled so that sums are near 1."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = tensors(config)
        generator = torch.Generator().manual_seed(0)
        # A prime number: rows do not repeat.
        self._numbers = torch.randn(1_000_003, generator=generator)

    @property
    def where(self) -> str:
        """No file."""
        return "random weights"

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """What the configuration asks for."""
        return self._shapes

    def read_into(self, name: str, out: Tensor) -> None:
        """Norms around 1; matrices by the width of their inputs."""
        start = zlib.crc32(name.encode()) % len(self._numbers)
        repeats = -(-(start + out.numel()) // len(self._numbers))
        numbers = self._numbers.repeat(repeats)[start : start + out.numel()].view(out.shape)
        if out.dim() == 1:
            out.copy_(numbers).mul_(0.1).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            out.copy_(numbers).mul_(1.0 if "embed" in name else out.shape[1] ** -0.5)

    def read_blocks(self, name: str) -> StoredBlocks | None:
        """All are floats."""
        return None

    def __exit__(self, *args: object) -> None:
        return None


def random_model(config: ModelConfig, *, device: str, precision: str) -> LoadedModel:
    """A model of random weights, the same on every device but for rounding."""
    checkpoint = RandomCheckpoint(config)
    model, config = read_model(config, checkpoint, precision=precision, device=device)
    return LoadedModel(
        reopen=partial(nullcontext, checkpoint),
        model=model,
        precision=precision,
        device=device,
        config=config,
        bundle=_BUNDLE,
        digest="0" * 64,
        name="random",
        num_parameters=num_parameters(config),
        weight_bytes=model.num_bytes,
        source="random",
    )


def build(loaded: LoadedModel, *, kv_bytes: int, records_decode: bool = True, max_sequences: int = 32) -> BuiltEngine:
    """An engine around a loaded model."""
    config = EngineConfig(
        model_path=Path(), kv_bytes=kv_bytes, records_decode=records_decode, max_sequences=max_sequences
    )
    return assemble(config, loaded, attention_backends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Greedy requests that never end early."""

    num_prompt: int = 40
    num_output: int = 64

    def add(self, built: BuiltEngine, count: int, salt: str = "") -> None:
        """Ask so many at once."""
        random = np.random.default_rng(0)
        for index in range(count):
            prompt = tuple(random.integers(0, built.card.vocab_size, self.num_prompt).tolist())
            params = SamplingParams(max_tokens=self.num_output)
            built.engine.add(Request(id=f"{salt}{index}", prompt=prompt, params=params, salt=salt))


SHORT, LONG = Load(num_output=16), Load()
# Whether decode steps are recorded.
_WAYS = (("recorded", True), ("plain", False))


def tokens_of(built: BuiltEngine, load: Load, count: int) -> dict[SeqId, list[int]]:
    """Answers of some requests."""
    load.add(built, count)
    found: dict[SeqId, list[int]] = {}
    while built.engine.has_work:
        for delta in built.engine.step():
            if delta.error is not None:
                raise AssertionError(delta.error)
            found.setdefault(delta.id, []).extend(delta.tokens)
    return found


def check_tokens(config: ModelConfig, load: Load = SHORT, *, count: int = 8) -> Iterator[Check]:
    """Answers in float32, with recorded steps and without, against those of the CPU."""
    plain = random_model(config, device=CPU, precision="float32")
    wanted = tokens_of(build(plain, kv_bytes=_SMALL_KV_BYTES), load, count)
    loaded = random_model(config, device=CUDA, precision="float32")
    for name, records_decode in _WAYS:
        built = build(loaded, kv_bytes=_SMALL_KV_BYTES, records_decode=records_decode, max_sequences=count)
        found = tokens_of(built, load, count)
        equal = [a == b for key, tokens in wanted.items() for a, b in zip(tokens, found[key], strict=True)]
        yield Check(name=f"model.{name}.equal_tokens", value=sum(equal) / len(equal), at_least=LEAST_EQUAL)


def decode_figures(
    loaded: LoadedModel,
    now_s: Callable[[], float],
    *,
    bytes_per_s: float,
    load: Load = LONG,
    batches: tuple[int, ...] = (1, 8, 32),
    kv_bytes: int = _KV_BYTES,
) -> dict[str, float]:
    """Tokens a second while so many sequences decode, and how near a step is to reading all weights once."""
    figures: dict[str, float] = {}
    for name, records_decode in _WAYS:
        built = build(loaded, kv_bytes=kv_bytes, records_decode=records_decode, max_sequences=max(batches))
        for count in batches:
            # The first round records what the second replays.
            _decode_s(built, load, count, "first", now_s)
            num_tokens, took_s = _decode_s(built, load, count, "second", now_s)
            step_s = took_s * count / num_tokens
            key = f"model.{name}.decode_{count}"
            figures[f"{key}.tokens_per_s"] = num_tokens / took_s
            figures[f"{key}.step_ms"] = 1e3 * step_s
            figures[f"{key}.fraction_of_bandwidth"] = loaded.weight_bytes / bytes_per_s / step_s
        del built
    return figures


def _decode_s(built: BuiltEngine, load: Load, count: int, salt: str, now_s: Callable[[], float]) -> tuple[int, float]:
    """(tokens, seconds) of the steps after which every request had a token already. A step ends on the CPU."""
    load.add(built, count, salt=f"{salt}-{count}-")
    begun: set[SeqId] = set()
    while len(begun) < count:
        begun |= {delta.id for delta in built.engine.step() if delta.tokens}
    started_s, num_tokens = now_s(), 0
    while built.engine.has_work:
        num_tokens += sum(len(delta.tokens) for delta in built.engine.step())
    return num_tokens, now_s() - started_s
