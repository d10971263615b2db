"""The pieces that decoder families share: linear maps, norms and rotary positions, in float32 on the CPU.

Legend: T tokens, N heads, H head dim, P rotated pairs (half the rotated dims), I inputs, O outputs.

Rotation pairs dim i with dim i + P in Hugging Face's layout. Here the rows of q and k are reordered once, at load
(`interleave`), so that a pair lies side by side and the rotation is one complex product in place. Attention does not
notice, because q and k are reordered alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_worker.models.base import RopeConfig

try:
    from octavo_worker.kernels import rows
except ImportError:  # without numba torch does it in more passes
    rows = None


# Rows that the packed forms are made for. They serve every number of rows; MKL's, made for fewer, is slow for many.
_MKL_PACKED_FOR, _ONEDNN_PACKED_FOR = 512, 32


@cache
def _is_amd() -> bool:
    """Whether MKL leaves this processor's vectors of 512 bits unused: it does so for all but its own maker's."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def linear_library() -> str:
    """Who multiplies matrices: the last bits of a product are its own."""
    if torch.backends.mkldnn.is_available() and _is_amd():
        return "onednn"
    return "mkl" if torch.backends.mkl.is_available() else "torch"


class Linear:
    """y = x W^T + b, the matrix in the own order of MKL or (on AMD's processors) oneDNN, where torch has them.

    A plain matrix is put into MKL's order again by every product: 30 % of the time at 8 to 32 rows, 20 % at 64 to 160.
    On Intel's processors oneDNN's packed form gains less and loses a quarter at one row; on AMD's it takes 0.4 to
    0.9 of the time of MKL's (1 to 128 rows of the demo model's sizes). The plain matrix is not kept.
    """

    __slots__ = ("_bias", "_onednn", "_packed", "_plain_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self._bias = bias_O
        self._packed: Tensor | None = None
        self._plain_OI = weight_OI
        self._onednn = linear_library() == "onednn"
        if self._onednn:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _ONEDNN_PACKED_FOR)
            self._plain_OI = weight_OI.new_zeros(0)
        elif linear_library() == "mkl":
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight_OI, _MKL_PACKED_FOR)
            # The product asks the plain matrix for its shape only.
            self._plain_OI = weight_OI.new_zeros(1).expand(weight_OI.shape)

    def __call__(self, x_TI: Tensor) -> Tensor:
        """Map rows."""
        if self._packed is None:
            return F.linear(x_TI, self._plain_OI, self._bias)
        if self._onednn:
            return torch.ops.mkldnn._linear_pointwise(x_TI, self._packed, self._bias, "none", [], "")
        return torch.ops.mkl._mkl_linear(x_TI, self._packed, self._plain_OI, self._bias, x_TI.shape[0])


class RmsNorm:
    """Root mean square norm with a weight."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight_D: Tensor, eps: float) -> None:
        self.weight = weight_D
        self.eps = eps
        self.shape = tuple(weight_D.shape)

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Normalise rows."""
        if rows is not None:
            return rows.rms_norm(x_TD, self.weight, self.eps)
        return F.rms_norm(x_TD, self.shape, self.weight, self.eps)


def silu_gate(gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up for rows that hold the gate's half, then up's; may overwrite the gate."""
    if rows is not None:
        return rows.silu_gate(gate_up_TI)
    gate, up = gate_up_TI.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)


def interleave(weight: Tensor, num_heads: int, head_dim: int, rotated: int) -> Tensor:
    """Reorder the rows (heads x head dim) so that the two dims of each rotated pair are neighbours; a copy."""
    heads = weight.view(num_heads, head_dim, *weight.shape[1:])
    pairs = heads[:, :rotated].unflatten(1, (2, rotated // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat((pairs, heads[:, rotated:]), dim=1).view(weight.shape)


class Rope:
    """Angles of rotary positions; one table a step serves all layers."""

    def __init__(self, config: RopeConfig, device: torch.device | None = None) -> None:
        """Tables are made on the device, None is the CPU; positions must lie there."""
        self._config = config
        frequencies_P, self._amplitude = _frequencies(config)
        self._frequencies_P = frequencies_P.to(device)
        self._num_pairs = config.dim // 2

    def table(self, positions_T: Tensor, prompt_lengths_T: Tensor | None) -> Tensor:
        """Complex rotations ``[T, 1, P]``. Prompt lengths count only for ``dynamic``, which stretches by length."""
        if self._config.kind == "dynamic":
            frequencies = self._stretched(positions_T, prompt_lengths_T)
        else:
            frequencies = self._frequencies_P
        # Of float64 only the rounding to float32 is left, so that every processor has the same table: torch takes these
        # two from MKL, whose last bits in float32 are the processor's.
        angles_TP = (positions_T.unsqueeze(1).to(torch.float32) * frequencies).double()
        cos, sin = angles_TP.cos().float(), angles_TP.sin().float()
        if self._amplitude != 1.0:
            cos, sin = cos.mul_(self._amplitude), sin.mul_(self._amplitude)
        return torch.complex(cos, sin).unsqueeze(1)

    def rotate_(self, x_TNH: Tensor, table_T1P: Tensor) -> None:
        """Rotate heads in place; their rotated dims must be interleaved."""
        rotated = x_TNH[..., : 2 * self._num_pairs]
        torch.view_as_complex(rotated.unflatten(-1, (self._num_pairs, 2))).mul_(table_T1P)

    def _stretched(self, positions_T: Tensor, prompt_lengths_T: Tensor | None) -> Tensor:
        """Frequencies ``[T, P]`` for the length that a fresh run over each token's sequence would see.

        A fresh run rotates the whole prompt for the prompt's length, and each later token for its own position.
        """
        lengths_T = positions_T + 1
        if prompt_lengths_T is not None:
            lengths_T = torch.maximum(lengths_T, prompt_lengths_T)
        original = self._config.original_length
        lengths_T = lengths_T.clamp(min=original)
        factor, dim = _number(self._config.scaling, "factor"), self._config.dim
        growth_T = (factor * lengths_T / original) - (factor - 1)
        base_T = self._config.theta * growth_T ** (dim / (dim - 2))
        exponents_P = torch.arange(0, dim, 2, dtype=torch.float32, device=positions_T.device) / dim
        return 1.0 / (base_T.to(torch.float32).unsqueeze(1) ** exponents_P)


def _number(scaling: Mapping[str, float | bool | None], name: str) -> float:
    value = scaling[name]
    assert isinstance(value, int | float), name  # the configuration was checked when it was read
    return float(value)


def _frequencies(config: RopeConfig) -> tuple[Tensor, float]:
    """Angle per position of each pair ``[P]`` (float32), and the factor on cosine and sine."""
    plain_P = 1.0 / (config.theta ** (torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim))
    match config.kind:
        case "default" | "dynamic":
            return plain_P, 1.0
        case "linear":
            return plain_P / _number(config.scaling, "factor"), 1.0
        case "divisors":
            return plain_P / torch.tensor(config.divisors, dtype=torch.float32), 1.0
        case "llama3":
            return _llama3(plain_P, config.scaling), 1.0
        case "yarn":
            return _yarn(config)
        case _:
            raise AssertionError(config.kind)


def _llama3(plain_P: Tensor, scaling: Mapping[str, float | bool | None]) -> Tensor:
    """Long waves are stretched by the factor, short ones are kept, those between are blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    original = _number(scaling, "original_max_position_embeddings")
    wavelengths_P = 2 * math.pi / plain_P
    blend_P = (original / wavelengths_P - low) / (high - low)
    blended_P = (1 - blend_P) * plain_P / factor + blend_P * plain_P
    stretched_P = torch.where(wavelengths_P > original / low, plain_P / factor, plain_P)
    between_P = (wavelengths_P >= original / high) & (wavelengths_P <= original / low)
    return torch.where(between_P, blended_P, stretched_P)


def _yarn(config: RopeConfig) -> tuple[Tensor, float]:
    """Interpolate slow pairs, keep fast ones, ramp between; scale the scores by the amplitude."""
    scaling, dim, theta = config.scaling, config.dim, config.theta
    factor = _number(scaling, "factor")
    original = _number(scaling, "original_max_position_embeddings")

    def correction(num_rotations: float) -> float:
        return dim * math.log(original / (num_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = correction(float(scaling.get("beta_fast") or 32))
    high = correction(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    keep_P = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    periods_P = theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    frequencies_P = 1.0 / (factor * periods_P) * (1 - keep_P) + 1.0 / periods_P * keep_P
    return frequencies_P, _yarn_amplitude(scaling, factor)


def _yarn_amplitude(scaling: Mapping[str, float | bool | None], factor: float) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if over and under:
        return magnitude(float(over)) / magnitude(float(under))
    return magnitude(1.0)
