"""The registry of the worker's plug-ins: the only module that names concrete ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo_common.errors import InvalidArgument
from octavo_worker.attention.base import Absent, AttentionBackend
from octavo_worker.kernels import gpu
from octavo_worker.runtime import build
from octavo_worker.runtime.build import BuiltEngine, EngineConfig
from octavo_worker.runtime.computing import BackendDeps


def _cpu(deps: BackendDeps) -> AttentionBackend:
    from octavo_worker.attention.cpu import CpuAttention

    return CpuAttention(
        num_heads=deps.num_heads,
        num_kv_heads=deps.num_kv_heads,
        head_dim=deps.head_dim,
        block_size=deps.block_size,
        num_threads=deps.num_threads,
    )


def _reference(deps: BackendDeps) -> AttentionBackend:
    from octavo_worker.attention.reference import ReferenceAttention

    return ReferenceAttention(block_size=deps.block_size)


def _triton_paged(deps: BackendDeps) -> AttentionBackend:
    if reason := gpu.missing():
        return Absent(name="triton_paged", reason=reason)
    from octavo_worker.attention.triton_paged import TritonAttention

    return TritonAttention(
        num_heads=deps.num_heads,
        num_kv_heads=deps.num_kv_heads,
        head_dim=deps.head_dim,
        block_size=deps.block_size,
        dtype=deps.dtype,
    )


# In order of preference.
ATTENTION: Mapping[str, Callable[[BackendDeps], AttentionBackend]] = {
    "cpu": _cpu,
    "triton_paged": _triton_paged,
    "reference": _reference,
}


def attention_backends(deps: BackendDeps, name: str) -> Sequence[AttentionBackend]:
    """The backend of that name, or all for `auto`; raises InvalidArgument that lists the known ones."""
    if name == "auto":
        return [make(deps) for make in ATTENTION.values()]
    if name not in ATTENTION:
        known = ", ".join(["auto", *ATTENTION])
        raise InvalidArgument(f"there is no attention backend {name!r}", hint=f"known: {known}")
    return [ATTENTION[name](deps)]


def build_engine(config: EngineConfig) -> BuiltEngine:
    """An engine with the plug-ins that this distribution has."""
    return build.build_engine(config, attention_backends)
