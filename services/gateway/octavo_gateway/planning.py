"""Answers what a model needs of a device: which shape and which formats are meant, then arithmetic.

Knows no protobuf. A served model's shape stands on its workers' card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo_common.errors import ModelNotFound
from octavo_common.jobs.spec import ModelCard
from octavo_common.plan.devices import DEVICES, Device, find_device
from octavo_common.plan.formats import KV_FORMATS, WEIGHT_FORMATS, Arithmetic, default_kv, kv_format, weight_format
from octavo_common.plan.report import Plan, Question, make_plan
from octavo_common.plan.shape import ModelShape
from octavo_common.plan.shapes import SHAPES

_DEFAULT_PROMPT, _DEFAULT_OUTPUT = 1024, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What was asked; zeros and empty texts take defaults."""

    model: str
    device: str
    precision: str = ""
    kv_format: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    batch: int = 0
    tensor_parallel: int = 0
    reserve: float | None = None
    # Figures that stand in place of the device's own.
    memory_bytes: float = 0.0
    bandwidth: float = 0.0
    peak: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What can be asked for by name."""

    models: Sequence[str]
    devices: Sequence[str]
    precisions: Sequence[str]
    kv_formats: Sequence[str]


def choices(cards: Sequence[ModelCard]) -> Choices:
    """Served models first, then known shapes."""
    served = [card.name for card in cards if card.shape is not None]
    return Choices(
        models=list(dict.fromkeys([*served, *SHAPES])),
        devices=list(DEVICES),
        precisions=list(WEIGHT_FORMATS),
        kv_formats=list(KV_FORMATS),
    )


def answer(request: PlanRequest, cards: Sequence[ModelCard]) -> Plan:
    """Plan; raises ModelNotFound and InvalidArgument."""
    shape, own_precision = _model(request.model, cards)
    stored = weight_format(request.precision or own_precision)
    question = Question(
        shape=shape,
        device=_device(request),
        stored=stored,
        kv=kv_format(request.kv_format) if request.kv_format else default_kv(stored),
        num_prompt_tokens=request.num_prompt_tokens or _DEFAULT_PROMPT,
        num_output_tokens=request.num_output_tokens or _DEFAULT_OUTPUT,
        batch=request.batch or 1,
        tensor_parallel=request.tensor_parallel or 1,
    )
    return make_plan(question if request.reserve is None else replace(question, reserve=request.reserve))


def _model(name: str, cards: Sequence[ModelCard]) -> tuple[ModelShape, str]:
    """The shape, and the precision that it is computed in where it is served."""
    card = next((card for card in cards if card.name == name and card.shape is not None), None)
    if card is not None and card.shape is not None:
        # The mode, and before a slash what else it says of keys and values.
        computed = card.numerics_id.split("/")[0].split("-")[0]
        return ModelShape.from_json(card.shape), computed if computed in WEIGHT_FORMATS else "bfloat16"
    if name in SHAPES:
        return SHAPES[name], "bfloat16"
    known = ", ".join(choices(cards).models)
    raise ModelNotFound(f"there is no shape of the model {name!r}", hint=f"known: {known}", param="model")


def _device(request: PlanRequest) -> Device:
    if request.memory_bytes > 0 and request.bandwidth > 0 and request.peak > 0:
        device = Device(name=request.device or "given", memory_bytes=1.0, bandwidth=1.0, peaks={})
    else:
        device = find_device(request.device)
    return replace(
        device,
        memory_bytes=request.memory_bytes or device.memory_bytes,
        bandwidth=request.bandwidth or device.bandwidth,
        peaks=dict.fromkeys(Arithmetic, request.peak) if request.peak else device.peaks,
    )
