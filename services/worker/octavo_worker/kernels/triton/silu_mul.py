"""The gate of a feed-forward layer in one pass.

    out[t, i] = g / (1 + exp(-g)) * u,    g = x[t, i], u = x[t, I + i]

T rows, I width of the gate. `x: [T, 2 I]` holds the gate's half, then up's; `out: [T, I]`. Computed in float32.

Source: SwiGLU (arXiv 2002.05202).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, require, require_tensor

_COLUMNS = 1024


@triton.jit
def _silu_mul(x_ptr, out_ptr, x_stride, out_stride, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i_I = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid_I = i_I < width
    gate_I = tl.load(x_ptr + row * x_stride + i_I, mask=valid_I, other=0.0).to(tl.float32)
    up_I = tl.load(x_ptr + row * x_stride + width + i_I, mask=valid_I, other=0.0).to(tl.float32)
    # exp of a negative number only: it cannot overflow.
    small_I = tl.exp(-tl.abs(gate_I))
    out_I = gate_I * tl.where(gate_I >= 0.0, 1.0, small_I) / (1.0 + small_I) * up_I
    tl.store(out_ptr + row * out_stride + i_I, out_I.to(out_ptr.dtype.element_ty), mask=valid_I)


def silu_mul_launch(x_TI: Tensor, out_TI: Tensor) -> Launch:
    """The launch that fills `out_TI`. Raises ValueError for arguments that do not fit each other."""
    num_rows, both = x_TI.shape
    require(both % 2 == 0, f"rows of {both} have no two halves")
    require_tensor("x", x_TI, (num_rows, both), FLOATS, device=x_TI.device)
    require_tensor("out", out_TI, (num_rows, both // 2), (x_TI.dtype,), device=x_TI.device)
    return Launch(
        kernel=_silu_mul,
        grid=(num_rows, triton.cdiv(both // 2, _COLUMNS)),
        args={
            "x_ptr": x_TI,
            "out_ptr": out_TI,
            "x_stride": x_TI.stride(0),
            "out_stride": out_TI.stride(0),
            "width": both // 2,
        },
        constants={"COLUMNS": _COLUMNS},
        num_warps=4,
    )


def silu_mul(x_TI: Tensor) -> Tensor:
    """silu(gate) * up of rows; a new tensor of half the width."""
    out_TI = torch.empty((x_TI.shape[0], x_TI.shape[1] // 2), dtype=x_TI.dtype, device=x_TI.device)
    silu_mul_launch(x_TI, out_TI).run()
    return out_TI
