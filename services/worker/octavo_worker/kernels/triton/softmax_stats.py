"""The largest scaled logit of each row and the sum of the exponentials, in one pass over the vocabulary.

    peak(r, c) = max over part c of x[r, v] / T(r);    total(r, c) = sum over part c of exp(x[r, v] / T(r) - peak(r, c))

R rows, V vocabulary, C parts of PART tokens. `logits: [R, V]`, `temperatures: float32 [R]`, both results `float32 [R,
C]`. `join_stats` makes them one peak and one total a row: the log-probability of token v is x / T - peak - log(total).
Torch needs four passes and a copy of the logits. Parts have one size, so a row's figures depend on that row alone.

Source: online softmax (arXiv 1805.02867).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, require_tensor

PART = 4096


@triton.jit
def _softmax_stats(
    logits_ptr, temperatures_ptr, peaks_ptr, totals_ptr, stride_row, num_parts, vocab_size, PART: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    v_V = part * PART + tl.arange(0, PART)
    valid_V = v_V < vocab_size
    temperature = tl.load(temperatures_ptr + row)
    x_V = tl.load(logits_ptr + row * stride_row + v_V, mask=valid_V, other=float("-inf")).to(tl.float32)
    x_V = x_V / temperature
    peak = tl.max(x_V, axis=0)
    # A part in which every token is forbidden has the peak -inf, and the sum 0.
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(x_V - base), axis=0)
    tl.store(peaks_ptr + row * num_parts + part, peak)
    tl.store(totals_ptr + row * num_parts + part, total)


def softmax_stats_launch(logits_RV: Tensor, temperatures_R: Tensor, peaks_RC: Tensor, totals_RC: Tensor) -> Launch:
    """The launch that fills peaks and totals. Raises ValueError for arguments that do not fit each other."""
    num_rows, vocab_size = logits_RV.shape
    device = logits_RV.device
    num_parts = triton.cdiv(vocab_size, PART)
    require_tensor("logits", logits_RV, (num_rows, vocab_size), FLOATS, device=device)
    require_tensor("temperatures", temperatures_R, (num_rows,), (torch.float32,), device=device)
    require_tensor("peaks", peaks_RC, (num_rows, num_parts), (torch.float32,), device=device)
    require_tensor("totals", totals_RC, (num_rows, num_parts), (torch.float32,), device=device)
    return Launch(
        kernel=_softmax_stats,
        grid=(num_rows, num_parts),
        args={
            "logits_ptr": logits_RV,
            "temperatures_ptr": temperatures_R,
            "peaks_ptr": peaks_RC,
            "totals_ptr": totals_RC,
            "stride_row": logits_RV.stride(0),
            "num_parts": num_parts,
            "vocab_size": vocab_size,
        },
        constants={"PART": PART},
        num_warps=8,
    )


def join_stats(peaks_RC: Tensor, totals_RC: Tensor) -> tuple[Tensor, Tensor]:
    """(peak `[R]`, total `[R]`) of whole rows; the total is float64."""
    peak_R = peaks_RC.amax(dim=1)
    weights_RC = (peaks_RC - peak_R[:, None]).double().exp().nan_to_num(0.0)
    return peak_R, (totals_RC.double() * weights_RC).sum(dim=1)


def softmax_stats(logits_RV: Tensor, temperatures_R: Tensor) -> tuple[Tensor, Tensor]:
    """(peak `[R]` of logits / temperature, float64 sum `[R]` of exp(logits / temperature - peak))."""
    num_rows, vocab_size = logits_RV.shape
    shape = (num_rows, triton.cdiv(vocab_size, PART))
    peaks_RC = torch.empty(shape, dtype=torch.float32, device=logits_RV.device)
    totals_RC = torch.empty_like(peaks_RC)
    softmax_stats_launch(logits_RV, temperatures_R, peaks_RC, totals_RC).run()
    return join_stats(peaks_RC, totals_RC)
