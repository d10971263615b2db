"""Root mean square norm of the single heads of queries and keys, in place, before they turn.

    x[t, h, :] <- x[t, h, :] / sqrt(mean(x[t, h, :]^2) + eps) * weight[h, :]

T fed tokens, X heads (query and key heads side by side), H head dim. `x: [T, X, H]`, `weight: [X, H]`. Sums: float32.

Source: RMSNorm (arXiv 1910.07467), of queries and keys as in Qwen3 (arXiv 2505.09388).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, power_of_two, require_tensor

# Elements that one program holds.
_PROGRAM = 2048


@triton.jit
def _head_norm(
    x_ptr, weight_ptr, x_stride_token, x_stride_head, weight_stride, num_heads, eps,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head_X = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    h_H = tl.arange(0, HEAD_PAD)
    valid_XH = (head_X < num_heads)[:, None] & (h_H < HEAD_DIM)[None, :]
    place_XH = x_ptr + token * x_stride_token + head_X[:, None] * x_stride_head + h_H[None, :]
    x_XH = tl.load(place_XH, mask=valid_XH, other=0.0).to(tl.float32)
    weight_XH = tl.load(weight_ptr + head_X[:, None] * weight_stride + h_H[None, :], mask=valid_XH, other=0.0)
    scale_X = 1.0 / tl.sqrt(tl.sum(x_XH * x_XH, axis=1) / HEAD_DIM + eps)
    out_XH = x_XH * scale_X[:, None] * weight_XH.to(tl.float32)
    tl.store(place_XH, out_XH.to(x_ptr.dtype.element_ty), mask=valid_XH)


def head_norm_launch(x_TXH: Tensor, weight_XH: Tensor, eps: float) -> Launch:
    """The launch that normalises heads in place. Raises ValueError for arguments that do not fit each other."""
    num_tokens, num_heads, head_dim = x_TXH.shape
    require_tensor("x", x_TXH, (num_tokens, num_heads, head_dim), FLOATS, device=x_TXH.device)
    require_tensor("weight", weight_XH, (num_heads, head_dim), FLOATS, device=x_TXH.device)
    pad = power_of_two(head_dim)
    heads = max(1, min(power_of_two(num_heads), _PROGRAM // pad))
    return Launch(
        kernel=_head_norm,
        grid=(num_tokens, triton.cdiv(num_heads, heads)),
        args={
            "x_ptr": x_TXH,
            "weight_ptr": weight_XH,
            "x_stride_token": x_TXH.stride(0),
            "x_stride_head": x_TXH.stride(1),
            "weight_stride": weight_XH.stride(0),
            "num_heads": num_heads,
            "eps": float(eps),
        },
        constants={"HEAD_DIM": head_dim, "HEAD_PAD": pad, "HEADS": heads},
        num_warps=4,
    )


def head_norm(x_TXH: Tensor, weight_XH: Tensor, eps: float) -> None:
    """Normalise heads in place."""
    head_norm_launch(x_TXH, weight_XH, eps).run()
