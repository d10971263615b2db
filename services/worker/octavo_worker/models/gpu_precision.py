"""In which floats a model is computed on a GPU. A rule, as for processors in `precision.py`; never a measurement."""

from __future__ import annotations

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_worker.models.base import AUTO

# Names of torch's dtypes. The first is what auto takes: half of float32's bytes, and its range.
GPU_PRECISIONS = ("bfloat16", "float16", "float32")


def choose_gpu_precision(asked: str, *, others: tuple[str, ...]) -> str:
    """The precision for a GPU. ``others`` are those of processors.

    Raises FailedPrecondition for one that only processors compute in, InvalidArgument for a name that nobody knows.
    """
    if asked == AUTO:
        return GPU_PRECISIONS[0]
    if asked in GPU_PRECISIONS:
        return asked
    hint = f"on a GPU: {', '.join((AUTO, *GPU_PRECISIONS))}; on a processor: set OCTAVO_WORKER_DEVICE=cpu"
    if asked in others:
        raise FailedPrecondition(f"the precision {asked} is for processors, not for GPUs", hint=hint)
    raise InvalidArgument(f"the precision {asked!r} is not supported", hint=hint)
