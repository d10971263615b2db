"""What all launchers share: a launch as a value, checks of arguments, and sizes that are powers of two.

A launcher makes a `Launch` and runs it. The same value can be compiled for a device that is not there (`aot.py`), so
what is checked ahead of time is what would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs

LOG2_E = 1.4426950408889634
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel with everything that one call of it takes."""

    kernel: Any
    # Programs along each axis; nothing runs if one is 0.
    grid: tuple[int, ...]
    # In the order of the kernel's parameters.
    args: Mapping[str, Tensor | int | float]
    constants: Mapping[str, int | bool | str]
    num_warps: int = 4
    num_stages: int = 2
    # Of a thread. Left to itself the assembler may spill a few bytes for the sake of occupancy.
    max_registers: int | None = None

    def run(self) -> None:
        """Start it on the current stream (in the interpreter: run it)."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.args, **self.constants, **self.options)

    @property
    def options(self) -> dict[str, int | bool]:
        """What the compiler is told. Fusing multiply and add is said aloud: its default differs between versions."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
            **({} if self.max_registers is None else {"maxnreg": self.max_registers}),
        }


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below the value."""
    return 1 << max(value - 1, 0).bit_length()


def require(condition: bool, words: str) -> None:
    """Raise ValueError with the words unless the condition holds."""
    if not condition:
        raise ValueError(words)


def require_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: Iterable[torch.dtype],
    *,
    device: torch.device,
    dense: bool = True,
) -> None:
    """Raise ValueError unless shape (None is any size), dtype and device fit and, if `dense`, the last dim is dense."""
    fits = len(shape) == tensor.dim() and all(w is None or w == s for w, s in zip(shape, tensor.shape, strict=True))
    require(fits, f"{name} has shape {tuple(tensor.shape)}, not {tuple(shape)}")
    known = tuple(dtypes)
    require(tensor.dtype in known, f"{name} is {tensor.dtype}, not one of {known}")
    require(tensor.device == device, f"{name} is on {tensor.device}, the others are on {device}")
    require(not dense or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1, f"the last dim of {name} is not dense")


def dot_precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies: a float32 that is promised must not become tf32, which is a GPU's default."""
    if dtype == torch.bfloat16 and is_interpreted():
        return "upcast"
    return "ieee" if dtype == torch.float32 else "tf32"


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return bool(knobs.runtime.interpret)
