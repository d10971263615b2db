"""Draws a token from each row of logits, without filters, in one pass: the largest of logit / T + Gumbel noise.

    u(v) = (mix(key + (v + 1) * STEP) >> 11 + 1/2) * 2^-53         SplitMix64, started at the row's key
    score(v) = x[r, v] / T(r) - log(-log(u(v)));                   token = the first v with the largest score

R rows, V vocabulary, C parts of PART tokens. `logits: [R, V]`, `temperatures: float64 [R]`, `keys: int64 [R]` (the bits
of an unsigned key, as `verify/noise.py` makes it). The noise is that of the worker's sampler, number by number, and is
float64 as there; only survivors of a filter need less than that, so filtered rows are drawn elsewhere. Each part yields
its best score and token; a part of the second pass over C parts is one `argmax`.

Source: the Gumbel-max trick (Gumbel 1954); SplitMix64 (Steele, Lea and Flood, 2014).
"""

# In a kernel Triton makes constants of literals, which the type checker cannot know.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, require_tensor

PART = 1024


@triton.jit
def _gumbel_argmax(
    logits_ptr, temperatures_ptr, keys_ptr, scores_ptr, tokens_ptr, stride_row, num_parts, vocab_size,
    PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    v_V = part * PART + tl.arange(0, PART)
    valid_V = v_V < vocab_size
    key = tl.load(keys_ptr + row).to(tl.uint64, bitcast=True)
    temperature = tl.load(temperatures_ptr + row)
    bits_V = (v_V + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
    bits_V = (bits_V ^ (bits_V >> 30)) * 0xBF58476D1CE4E5B9
    bits_V = (bits_V ^ (bits_V >> 27)) * 0x94D049BB133111EB
    bits_V = (bits_V ^ (bits_V >> 31)) >> 11
    # Fewer than 2^53, so exact as float64; half a step above the grid, so that 0 cannot occur.
    uniform_V = (bits_V.to(tl.float64) + 0.5) * 1.1102230246251565e-16
    noise_V = -tl.log(-tl.log(uniform_V))
    x_V = tl.load(logits_ptr + row * stride_row + v_V, mask=valid_V, other=float("-inf")).to(tl.float64)
    score_V = tl.where(valid_V, x_V / temperature + noise_V, float("-inf"))
    best = tl.max(score_V, axis=0)
    # Of equals the first; in a part without any score its first token.
    token = tl.min(tl.where(score_V == best, v_V, 2147483647), axis=0)
    tl.store(scores_ptr + row * num_parts + part, best)
    tl.store(tokens_ptr + row * num_parts + part, token.to(tl.int64))


def gumbel_argmax_launch(
    logits_RV: Tensor, temperatures_R: Tensor, keys_R: Tensor, scores_RC: Tensor, tokens_RC: Tensor
) -> Launch:
    """The launch that fills each part's best score and token. Raises ValueError."""
    num_rows, vocab_size = logits_RV.shape
    device = logits_RV.device
    num_parts = triton.cdiv(vocab_size, PART)
    require_tensor("logits", logits_RV, (num_rows, vocab_size), FLOATS, device=device)
    require_tensor("temperatures", temperatures_R, (num_rows,), (torch.float64,), device=device)
    require_tensor("keys", keys_R, (num_rows,), (torch.int64,), device=device)
    require_tensor("scores", scores_RC, (num_rows, num_parts), (torch.float64,), device=device)
    require_tensor("tokens", tokens_RC, (num_rows, num_parts), (torch.int64,), device=device)
    return Launch(
        kernel=_gumbel_argmax,
        grid=(num_rows, num_parts),
        args={
            "logits_ptr": logits_RV,
            "temperatures_ptr": temperatures_R,
            "keys_ptr": keys_R,
            "scores_ptr": scores_RC,
            "tokens_ptr": tokens_RC,
            "stride_row": logits_RV.stride(0),
            "num_parts": num_parts,
            "vocab_size": vocab_size,
        },
        constants={"PART": PART},
        num_warps=4,
    )


def gumbel_argmax(logits_RV: Tensor, temperatures_R: Tensor, keys_R: Tensor) -> Tensor:
    """One token `int64 [R]` a row, drawn from softmax(logits / temperature) with the noise of the row's key."""
    num_rows, vocab_size = logits_RV.shape
    shape = (num_rows, triton.cdiv(vocab_size, PART))
    scores_RC = torch.empty(shape, dtype=torch.float64, device=logits_RV.device)
    tokens_RC = torch.empty(shape, dtype=torch.int64, device=logits_RV.device)
    gumbel_argmax_launch(logits_RV, temperatures_R, keys_R, scores_RC, tokens_RC).run()
    # The first of equal parts: its tokens come first.
    best_R1 = scores_RC.argmax(dim=1, keepdim=True)
    return tokens_RC.gather(1, best_R1).squeeze(1)
