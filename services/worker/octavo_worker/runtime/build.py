"""Puts an engine together from a model and settings. Knows no service, no environment and no concrete plug-in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from octavo_common.jobs.spec import ModelCard
from octavo_common.text.bundle import TokenizerBundle
from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.core import Engine
from octavo_worker.engine.ports import LocalKV, NeverExit
from octavo_worker.engine.queueing import QUEUES
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.styles import STYLES
from octavo_worker.engine.types import Limits
from octavo_worker.kv.host import map_slots
from octavo_worker.kv.local import LocalTransfer
from octavo_worker.models.base import AUTO, CPU, LoadedModel, ModelConfig
from octavo_worker.models.registry import load_model
from octavo_worker.runtime.computing import (
    BLOCK_SIZE,
    BackendFactory,
    Computing,
    Resources,
    compute,
    num_blocks_of_longest,
)
from octavo_worker.runtime.devices import (
    choose_device,
    default_batch_tokens,
    default_prompt_tokens_beside_decode,
)
from octavo_worker.runtime.executor import TorchExecutor
from octavo_worker.runtime.inputs import InputBuilder
from octavo_worker.runtime.pages import collapse_resident_memory
from octavo_worker.runtime.shape import planned_shape
from octavo_worker.verify.grammars import GrammarStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is made from."""

    model_path: Path
    # Name under which the model is served; empty takes the file's own.
    model_name: str = ""
    # auto, cpu or cuda; auto takes a GPU where there is one.
    device: str = CPU
    # auto is chosen by rule: see models/precision and models/gpu_precision.
    precision: str = AUTO
    # None takes what the device has, see runtime/devices.
    kv_bytes: int | None = None
    # None takes what torch finds.
    num_threads: int | None = None
    # auto takes the first backend that can serve the model.
    attention_backend: str = AUTO
    # None: what the device computes in a fraction of a second, see `default_batch_tokens`.
    max_batch_tokens: int | None = None
    max_sequences: int = 64
    # None goes by the device.
    max_prompt_tokens_beside_decode: int | None = None
    max_chunk_tokens: int | None = None
    # recompute or swap; with the latter so much host memory takes the blocks of sequences that make room.
    preemption: str = "recompute"
    swap_bytes: int = 1 << 30
    # A key of QUEUES, and one of STYLES.
    queue: str = "priority"
    engine_style: str = "v1"
    # On a GPU: record decode steps and replay them.
    records_decode: bool = True
    # Debug: blocks hold NaN until they are written.
    poison_fresh_blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine and what its service announces."""

    engine: Engine
    card: ModelCard
    bundle: TokenizerBundle
    eos_ids: tuple[int, ...]
    limits: Limits
    loaded: LoadedModel
    attention_backend: str
    grammars: GrammarStore


def build_engine(config: EngineConfig, backends: BackendFactory) -> BuiltEngine:
    """Load the model and build the engine. Raises typed errors: bad files, no backend, a pool too small."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = choose_device(config.device)
    loaded = load_model(config.model_path, precision=config.precision, name=config.model_name, device=device)
    if device == CPU:
        log.info("engine.huge_pages", num_bytes=collapse_resident_memory())
    return assemble(config, loaded, backends)


def assemble(config: EngineConfig, loaded: LoadedModel, backends: BackendFactory) -> BuiltEngine:
    """Build the engine around a loaded model."""
    model = loaded.config
    num_threads = torch.get_num_threads()
    computing = compute(loaded, _resources(config, num_threads, backends))
    num_host_slots = config.swap_bytes // computing.pool[0].nbytes if config.preemption == "swap" else 0
    grammars = GrammarStore(loaded.bundle, vocab_size=model.vocab_size, eos_ids=model.eos_ids)
    executor = _executor(config, model, computing, grammars, num_host_slots)
    scheduler = _scheduler(
        config,
        loaded,
        computing,
        _limits(config, loaded, num_threads, computing.num_blocks * BLOCK_SIZE - executor.lookahead),
        lookahead=executor.lookahead,
        num_host_slots=num_host_slots,
    )
    card = _card(config, loaded, computing, scheduler.limits)
    log.info(
        "engine.built",
        model=card.name,
        device=loaded.device,
        attention=computing.attention_backend,
        numerics_id=card.numerics_id,
        num_blocks=card.num_blocks,
    )
    return BuiltEngine(
        engine=Engine(scheduler, executor),
        card=card,
        bundle=loaded.bundle,
        eos_ids=model.eos_ids,
        limits=scheduler.limits,
        loaded=loaded,
        attention_backend=computing.attention_backend,
        grammars=grammars,
    )


def _resources(config: EngineConfig, num_threads: int, backends: BackendFactory) -> Resources:
    return Resources(
        kv_bytes=config.kv_bytes,
        num_threads=num_threads,
        max_sequences=config.max_sequences,
        records_decode=config.records_decode,
        attention_backend=config.attention_backend,
        backends=backends,
        poison=config.poison_fresh_blocks,
    )


def _executor(
    config: EngineConfig, model: ModelConfig, computing: Computing, grammars: GrammarStore, num_host_slots: int
) -> TorchExecutor:
    return TorchExecutor(
        inputs=InputBuilder(
            block_size=BLOCK_SIZE,
            max_blocks=num_blocks_of_longest(model, computing.num_blocks),
            grammars=grammars,
        ),
        runner=computing.runner,
        verifier=computing.verifier,
        kv=LocalTransfer(computing.pool, map_slots(computing.pool, num_host_slots), computing.copy),
        poison_fresh_blocks=config.poison_fresh_blocks,
    )


def _limits(config: EngineConfig, loaded: LoadedModel, num_threads: int, num_slots: int) -> Limits:
    """What the settings say, and where they are silent the device; ``num_slots``: tokens that the pool takes."""
    return Limits(
        max_batch_tokens=config.max_batch_tokens
        or default_batch_tokens(num_threads, config.max_sequences, loaded.device),
        max_sequences=config.max_sequences,
        max_prompt_tokens_beside_decode=config.max_prompt_tokens_beside_decode
        or default_prompt_tokens_beside_decode(loaded.device),
        max_chunk_tokens=config.max_chunk_tokens,
        max_sequence_tokens=min(loaded.config.context_length, num_slots),
    )


def _scheduler(
    config: EngineConfig,
    loaded: LoadedModel,
    computing: Computing,
    limits: Limits,
    *,
    lookahead: int,
    num_host_slots: int,
) -> Scheduler:
    return Scheduler(
        pool=BlockPool(computing.num_blocks, BLOCK_SIZE),
        limits=limits,
        queue=QUEUES[config.queue](),
        style=STYLES[config.engine_style](),
        num_host_slots=num_host_slots,
        kv=LocalKV(),
        exit_policy=NeverExit(),
        lookahead=lookahead,
        extras=(("model", loaded.digest), ("numerics", computing.numerics_id)),
        stretches_beyond=loaded.config.stretches_beyond,
    )


def _card(config: EngineConfig, loaded: LoadedModel, computing: Computing, limits: Limits) -> ModelCard:
    model = loaded.config
    return ModelCard(
        name=loaded.name,
        digest=loaded.digest,
        family=model.family,
        numerics_id=computing.numerics_id,
        tokenizer_digest=loaded.bundle.digest,
        max_sequence_tokens=limits.max_sequence_tokens,
        context_length=model.context_length,
        block_size=BLOCK_SIZE,
        num_blocks=computing.num_blocks,
        vocab_size=model.vocab_size,
        shape=planned_shape(config.model_path, loaded.name),
        exact=computing.exact,
    )
