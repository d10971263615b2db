"""Rotates heads by their positions, in place. The two dims of a pair are neighbours here (`models/layers.py`).

    (x[2p], x[2p+1]) <- (x[2p] cos(t, p) - x[2p+1] sin(t, p),  x[2p] sin(t, p) + x[2p+1] cos(t, p))

T fed tokens, X heads (query and key heads side by side), H head dim, P rotated pairs (2P <= H; the other dims are left
as they are). `x: [T, X, H]`, `table: float32 [T, P, 2]` holds (cos, sin): the real view of a complex table `[T, 1, P]`.
The product is float32.

Source: RoFormer (arXiv 2104.09864).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, power_of_two, require, require_tensor

# Elements that one program holds.
_PROGRAM = 2048


@triton.jit
def _rotary(
    x_ptr, table_ptr, x_stride_token, x_stride_head, table_stride, num_heads,
    PAIRS: tl.constexpr, PAIRS_PAD: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head_X = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    # Both dims of every pair in one dense load, then taken apart.
    d_D = tl.arange(0, 2 * PAIRS_PAD)
    valid_D = d_D < 2 * PAIRS
    valid_XD = (head_X < num_heads)[:, None] & valid_D[None, :]
    place_XD = x_ptr + token * x_stride_token + head_X[:, None] * x_stride_head + d_D[None, :]
    x_XD = tl.load(place_XD, mask=valid_XD, other=0.0).to(tl.float32)
    a_XP, b_XP = tl.split(tl.reshape(x_XD, (HEADS, PAIRS_PAD, 2)))
    turn_D = tl.load(table_ptr + token * table_stride + d_D, mask=valid_D, other=0.0)
    cos_P, sin_P = tl.split(tl.reshape(turn_D, (PAIRS_PAD, 2)))
    turned_XP2 = tl.join(a_XP * cos_P[None, :] - b_XP * sin_P[None, :], a_XP * sin_P[None, :] + b_XP * cos_P[None, :])
    turned_XD = tl.reshape(turned_XP2, (HEADS, 2 * PAIRS_PAD))
    tl.store(place_XD, turned_XD.to(x_ptr.dtype.element_ty), mask=valid_XD)


def rotary_launch(x_TXH: Tensor, table_TP2: Tensor) -> Launch:
    """The launch that rotates in place. Raises ValueError for arguments that do not fit each other."""
    num_tokens, num_heads, head_dim = x_TXH.shape
    num_pairs = table_TP2.shape[1]
    require_tensor("x", x_TXH, (num_tokens, num_heads, head_dim), FLOATS, device=x_TXH.device)
    require_tensor("table", table_TP2, (num_tokens, num_pairs, 2), (torch.float32,), device=x_TXH.device)
    require(table_TP2.stride(1) == 2, "the table of a token must be dense")
    require(0 < 2 * num_pairs <= head_dim, f"{num_pairs} pairs do not fit heads of {head_dim}")
    pad = power_of_two(num_pairs)
    heads = max(1, min(power_of_two(num_heads), _PROGRAM // (2 * pad)))
    return Launch(
        kernel=_rotary,
        grid=(num_tokens, triton.cdiv(num_heads, heads)),
        args={
            "x_ptr": x_TXH,
            "table_ptr": table_TP2,
            "x_stride_token": x_TXH.stride(0),
            "x_stride_head": x_TXH.stride(1),
            "table_stride": table_TP2.stride(0),
            "num_heads": num_heads,
        },
        constants={"PAIRS": num_pairs, "PAIRS_PAD": pad, "HEADS": heads},
        num_warps=4,
    )


def rotary(x_TXH: Tensor, table_TP2: Tensor) -> None:
    """Rotate heads in place."""
    rotary_launch(x_TXH, table_TP2).run()
