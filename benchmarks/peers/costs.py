"""What a model costs to compute, and which part of a machine's ceilings a speed is. Knows no system."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.ceilings import Ceilings


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The matrices of a checkpoint."""

    gguf_bytes: int
    # Of all matrices, the head included; and of the head.
    num_weights: int
    num_head_weights: int

    def weight_bytes(self, per_weight: float | None) -> float:
        """What a system holds of them; None is what the GGUF file has."""
        return self.gguf_bytes if per_weight is None else self.num_weights * per_weight

    def operations(self, num_prompt: float, num_new: float) -> float:
        """Two for each weight and token; a prompt's tokens need no head but for the last."""
        return 2 * (num_new * self.num_weights + num_prompt * (self.num_weights - self.num_head_weights))


def read_part(num_bytes: float, seconds: float, ceilings: Ceilings) -> float:
    """The part of the memory bandwidth when so many bytes are read in that time."""
    return num_bytes / seconds / 1e9 / ceilings.read_gb_per_s


def int8_part(operations: float, seconds: float, ceilings: Ceilings) -> float:
    """The part of the int8 throughput."""
    return operations / seconds / 1e9 / ceilings.int8_gops
