"""How a model's weights are held and multiplied, and which way is taken when nobody says. Pure but for one question.

The choice follows rules, never a measurement, so that equal machines choose equally: the file's format, the model's
sizes, the processor's instructions.
"""

from __future__ import annotations

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_worker.models.base import AUTO, ModelConfig
from octavo_worker.models.gpu_precision import GPU_PRECISIONS
from octavo_worker.models.packed_weights import reasons_against

FLOAT32, BFLOAT16, W8A8, W4A8, W4A16 = "float32", "bfloat16", "w8a8", "w4a8", "w4a16"
PRECISIONS = (FLOAT32, BFLOAT16, W8A8, W4A8, W4A16)
_FOUR_BITS = ("Q4_0", "Q4_1")


def choose_precision(asked: str, config: ModelConfig, *, quantization: str, has_vnni: bool) -> str:
    """The precision for a model. ``quantization`` is GGUF's name of its matrices' commonest type, empty for floats.

    auto takes 8-bit weights on processors that multiply bytes, float32 elsewhere. 4-bit weights are for those who ask:
    they are quicker for one request, and slower for prompts and many. Raises InvalidArgument for a name that we do not
    know, or that is for GPUs, FailedPrecondition for what the model cannot have.
    """
    if asked in GPU_PRECISIONS and asked not in PRECISIONS:
        raise InvalidArgument(
            f"the precision {asked} is for GPUs, not for processors",
            hint=f"on a processor: {', '.join((AUTO, *PRECISIONS))}; on a GPU: set OCTAVO_WORKER_DEVICE=cuda",
        )
    if asked not in (AUTO, *PRECISIONS):
        known = ", ".join((AUTO, *PRECISIONS))
        raise InvalidArgument(f"the precision {asked!r} is not supported", hint=f"supported: {known}")
    reasons = reasons_against(config)
    if asked == AUTO:
        return FLOAT32 if reasons or not has_vnni else W8A8
    left = FLOAT32 if reasons else f"{BFLOAT16} or {W8A8}"
    if asked in (W4A8, W4A16) and quantization not in _FOUR_BITS:
        reasons = [*reasons, "its weights are not stored in 4 bits (GGUF's Q4_0 or Q4_1)"]
    if asked != FLOAT32 and reasons:
        raise FailedPrecondition(
            f"the model cannot be computed in {asked}: {'; '.join(reasons)}", hint=f"use {left}, or {AUTO}"
        )
    return asked
