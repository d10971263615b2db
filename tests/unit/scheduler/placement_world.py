"""Jobs and workers by number, with defaults that are in nobody's way."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from octavo_common.jobs.model import FleetJob, FleetWorker, QueuedJob
from octavo_common.jobs.spec import ModelCard
from octavo_scheduler.placement import WorkerView


def uid(number: int, space: int = 0) -> UUID:
    return UUID(int=space << 64 | number)


def job(number: int, **changes: Any) -> QueuedJob:
    values: dict[str, Any] = {
        "id": uid(number, 1),
        "fence": number % 3,
        "tenant": "acme",
        "fair_key": "acme",
        "model_digest": "m1",
        "numerics_id": "",
        "priority": 0,
        "resumed": False,
        "losses": 0,
        "total_losses": 0,
        "num_prompt_tokens": 10,
        "num_emitted_tokens": 0,
        "max_tokens": 16,
        "prefix_keys": (),
        "traceparent": "",
        "age_s": 0.0,
        "tenant_max_running": None,
        "tenant_num_running": 0,
    }
    return QueuedJob(**{**values, **changes})


def worker(number: int, **changes: Any) -> WorkerView:
    values: dict[str, Any] = {"id": uid(number, 2), "model_digest": "m1", "numerics_id": "n1", "max_jobs": 8}
    return WorkerView(**{**values, **changes})


def row(number: int, *, jobs: tuple[FleetJob, ...] = (), **changes: Any) -> FleetWorker:
    card = ModelCard(
        name="tiny",
        digest="m1",
        family="llama",
        numerics_id="n1",
        tokenizer_digest="",
        max_sequence_tokens=512,
        context_length=512,
        block_size=16,
        num_blocks=changes.pop("num_blocks", 64),
        vocab_size=100,
    )
    values: dict[str, Any] = {
        "id": uid(number, 2),
        "address": "127.0.0.1:1",
        "draining": False,
        "card": card,
        "max_jobs": 8,
        "load": {},
        "heartbeat_age_s": 1.0,
        "jobs": jobs,
    }
    return FleetWorker(**{**values, **changes})
