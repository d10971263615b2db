"""Root mean square norm of rows, with the sum of a residual stream in the same pass.

    r = x + residual                               (written back to residual; without one r = x)
    out = r / sqrt(mean(r^2) + eps) * weight

T rows, D width. `x, residual, out: [T, D]`, `weight: [D]`. Sums are float32; r is rounded to its dtype before it is
squared, so that the norm is that of what the next layer reads. A row's result depends on that row alone.

Source: RMSNorm (arXiv 1910.07467).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, power_of_two, require, require_tensor

# A row is held in registers.
MAX_WIDTH = 16384


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, x_stride, residual_stride, out_stride, eps,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, WIDTH_PAD)
    valid_D = d_D < WIDTH
    r_D = tl.load(x_ptr + row * x_stride + d_D, mask=valid_D, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        r_D += tl.load(residual_ptr + row * residual_stride + d_D, mask=valid_D, other=0.0).to(tl.float32)
        rounded_D = r_D.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * residual_stride + d_D, rounded_D, mask=valid_D)
        r_D = rounded_D.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(r_D * r_D, axis=0) / WIDTH + eps)
    weight_D = tl.load(weight_ptr + d_D, mask=valid_D, other=0.0).to(tl.float32)
    out_D = r_D * scale * weight_D
    tl.store(out_ptr + row * out_stride + d_D, out_D.to(out_ptr.dtype.element_ty), mask=valid_D)


def rms_norm_launch(
    x_TD: Tensor, weight_D: Tensor, eps: float, out_TD: Tensor, residual_TD: Tensor | None = None
) -> Launch:
    """The launch that normalises rows into `out_TD`. Raises ValueError for arguments that do not fit each other."""
    num_rows, width = x_TD.shape
    device = x_TD.device
    require_tensor("x", x_TD, (num_rows, width), FLOATS, device=device)
    require_tensor("weight", weight_D, (width,), FLOATS, device=device)
    require_tensor("out", out_TD, (num_rows, width), (x_TD.dtype,), device=device)
    if residual_TD is not None:
        require_tensor("residual", residual_TD, (num_rows, width), (x_TD.dtype,), device=device)
    require(width <= MAX_WIDTH, f"rows of {width} are wider than {MAX_WIDTH}")
    residual = x_TD if residual_TD is None else residual_TD
    pad = power_of_two(width)
    return Launch(
        kernel=_rms_norm,
        grid=(num_rows,),
        args={
            "x_ptr": x_TD,
            "residual_ptr": residual,
            "weight_ptr": weight_D,
            "out_ptr": out_TD,
            "x_stride": x_TD.stride(0),
            "residual_stride": residual.stride(0),
            "out_stride": out_TD.stride(0),
            "eps": float(eps),
        },
        constants={"WIDTH": width, "WIDTH_PAD": pad, "HAS_RESIDUAL": residual_TD is not None},
        num_warps=min(max(pad // 512, 1), 16),
    )


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None = None) -> Tensor:
    """Normalise rows; a new tensor. With a residual, it is added first and holds the sum afterwards."""
    out_TD = torch.empty_like(x_TD)
    rms_norm_launch(x_TD, weight_D, eps, out_TD, residual_TD).run()
    return out_TD
