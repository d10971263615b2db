"""The GPU that Triton's kernels run on: whether there is one, and why not. Imports Triton only when it is asked.

In Triton's interpreter (TRITON_INTERPRET=1) kernels run on CPU tensors: the GPU is then the interpreter, so that all
that serves on a GPU can be tested on a machine without one.
"""

from __future__ import annotations

import torch

# Older ones have no bfloat16, and no kernel is compiled for them here.
LEAST_CAPABILITY = (8, 0)


def missing() -> str:
    """Why there are no kernels in this installation; empty when there are."""
    try:
        import triton  # noqa: F401 - what is asked is whether it can be imported
    except ImportError as error:  # torch's builds for CUDA bring it
        return f"triton cannot be imported ({error})"
    return ""


def reasons_against(capability: tuple[int, int] = LEAST_CAPABILITY, *, who: str = "the kernels need") -> list[str]:
    """Why kernels that need this compute capability cannot run here; empty when they can. ``who`` needs it."""
    reasons = [reason] if (reason := missing()) else []
    if not reasons and is_interpreted():
        return []
    if not torch.cuda.is_available():
        build = "this build of torch has no CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        return [*reasons, f"no GPU: {build}"]
    found = torch.cuda.get_device_capability()
    if found < capability:
        needed, has = (".".join(map(str, numbers)) for numbers in (capability, found))
        reasons.append(f"{who} compute capability {needed}, the GPU has {has}")
    return reasons


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter. Only where Triton is there."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def torch_device() -> torch.device:
    """Where the tensors lie that kernels work on: the first GPU that this process may see. Only where Triton is."""
    return torch.device("cpu" if is_interpreted() else "cuda")


def machine() -> str:
    """What a kernel's numbers depend on beside its source: the architecture, and who compiled it. Only where one is."""
    import triton

    version = ".".join(triton.__version__.split(".")[:2])
    if is_interpreted():
        return f"triton-{version}/interpreter"
    major, minor = torch.cuda.get_device_capability()
    return f"triton-{version}/sm_{major}{minor}"
