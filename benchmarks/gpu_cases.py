"""What `gpu_kernels.py` runs: every kernel at a serving size, with what it must give, move and multiply.

The same cases run at a tiny size in Triton's interpreter, so that the script is tested where no GPU is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.triton_paged import TritonAttention
from octavo_worker.kernels.triton.copy_blocks import copy_blocks
from octavo_worker.kernels.triton.gumbel_argmax import gumbel_argmax
from octavo_worker.kernels.triton.pages import KVFormat, PagedKV, region_bytes, view_pages
from octavo_worker.kernels.triton.rms_norm import rms_norm
from octavo_worker.kernels.triton.rotary import rotary
from octavo_worker.kernels.triton.silu_mul import silu_mul
from octavo_worker.kernels.triton.softmax_stats import softmax_stats
from octavo_worker.kernels.triton.write_kv import write_kv

BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the cases are; the defaults are those of a model of 8 billion parameters."""

    num_rows: int = 64
    context: int = 4096
    prompt: int = 2048
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 14336
    vocab: int = 128256
    dtype: torch.dtype = torch.bfloat16


TINY = Sizes(
    num_rows=2,
    context=40,
    prompt=18,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    hidden=96,
    intermediate=80,
    vocab=1500,
    dtype=torch.float16,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel (or the two of decode attention) on one input."""

    name: str
    run: Callable[[], Tensor]
    # What it must give, in float64 or exactly; called once.
    wanted: Callable[[], Tensor]
    # Largest allowed difference, absolute.
    tolerance: float
    # What must be moved and multiplied at least.
    num_bytes: float
    num_flops: float = 0.0
    # The same by torch: for attention SDPA over keys and values that lie together.
    torch_run: Callable[[], object] | None = None


def cases(device: torch.device, sizes: Sizes, formats: tuple[KVFormat, ...]) -> Iterator[Case]:
    """All cases, one at a time, because each holds much memory."""
    for format in formats:
        yield attention_case(device, sizes, format, [(sizes.context - 1, 1)] * sizes.num_rows, "decode_attention")
    yield attention_case(device, sizes, KVFormat.PLAIN, [(0, sizes.prompt)] * 4, "extend_attention.prompt")
    chunks = [(sizes.context - sizes.prompt // 8, sizes.prompt // 8)] * 4
    yield attention_case(device, sizes, KVFormat.PLAIN, chunks, "extend_attention.chunk")
    yield from page_cases(device, sizes, formats)
    yield from row_cases(device, sizes)
    yield from draw_cases(device, sizes)


def make_pages(device: torch.device, sizes: Sizes, format: KVFormat, num_blocks: int) -> tuple[Tensor, PagedKV]:
    """A pool of two layers."""
    inner = {"num_layers": 2, "block_size": BLOCK, "num_kv_heads": sizes.num_kv_heads, "head_dim": sizes.head_dim}
    if format is KVFormat.PLAIN:
        shape = (num_blocks, 2, 2, BLOCK, sizes.num_kv_heads, sizes.head_dim)
        pool = torch.zeros(shape, dtype=sizes.dtype, device=device)
    else:
        pool = torch.zeros(num_blocks, region_bytes(format, **inner), dtype=torch.uint8, device=device)
    return pool, view_pages(pool, format, **inner)


def attention_case(
    device: torch.device, sizes: Sizes, format: KVFormat, rows: list[tuple[int, int]], name: str
) -> Case:
    """Rows of (start, tokens): the fed tokens' keys and values are written, then all of them attend."""
    num_heads, num_kv_heads, head_dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    longest = max(start + count for start, count in rows)
    num_blocks = -(-longest // BLOCK)
    tables = np.random.default_rng(0).permutation(len(rows) * num_blocks).astype(np.int32).reshape(len(rows), -1)
    pool, kv = make_pages(device, sizes, format, tables.size)
    generator = torch.Generator(device).manual_seed(0)
    keys = [_random(generator, device, sizes, (start + count, num_kv_heads, head_dim)) for start, count in rows]
    values = [_random(generator, device, sizes, (start + count, num_kv_heads, head_dim)) for start, count in rows]
    slots = []
    for (start, count), table, k, v in zip(rows, tables, keys, values, strict=True):
        positions = np.arange(start + count)
        places = table[positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
        write_kv(k, v, torch.from_numpy(places).to(device), kv, 1)
        slots.append(places[start:])
    q = _random(generator, device, sizes, (sum(count for _, count in rows), num_heads, head_dim))
    backend = TritonAttention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK,
        dtype=sizes.dtype,
        kv_format=format,
    )
    starts, counts = (np.array([row[i] for row in rows], np.int32) for i in (0, 1))
    plan = backend.plan(
        AttnBatch(starts_R=starts, num_tokens_R=counts, tables_RB=tables, slots_T=np.concatenate(slots))
    )
    fed = [torch.cat([x[start:] for x, (start, _) in zip(xs, rows, strict=True)]) for xs in (keys, values)]
    scale = 1.0 / math.sqrt(head_dim)

    def by_torch(q_TNH: Tensor, k_SGH: Tensor, v_SGH: Tensor) -> Tensor:
        mask = torch.ones(len(q_TNH), len(k_SGH), dtype=torch.bool, device=device).tril(len(k_SGH) - len(q_TNH))
        group = num_heads // num_kv_heads
        k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k_SGH, v_SGH))
        scores = (q_TNH.transpose(0, 1) @ k.transpose(1, 2) * scale).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)

    def wanted() -> Tensor:
        out, at = [], 0
        for (_, count), table, k in zip(rows, tables, keys, strict=True):
            blocks = torch.from_numpy(table.astype(np.int64)).to(device)
            stored = kv.codes[blocks, 1].double()
            if kv.scales is not None:
                stored = stored * kv.scales[blocks, 1].double()[..., None]
            k_SGH, v_SGH = (stored[:, i].flatten(0, 1)[: len(k)] for i in (0, 1))
            out.append(by_torch(q[at : at + count].double(), k_SGH, v_SGH))
            at += count
        return torch.cat(out)

    num_pairs = sum(count * start + count * (count + 1) / 2 for start, count in rows)
    code_bytes = kv.codes.element_size() * head_dim + (0 if kv.scales is None else 4)
    key_bytes = 2 * sum(start + count for start, count in rows) * num_kv_heads * code_bytes
    return Case(
        name=f"{name}.{format}",
        run=lambda: backend.attend(q, *fed, pool, plan, 1),
        wanted=wanted,
        tolerance=4e-2 if sizes.dtype == torch.bfloat16 else 1e-2,
        num_bytes=key_bytes + 2 * q.numel() * q.element_size(),
        num_flops=4 * num_pairs * num_heads * head_dim,
        torch_run=_sdpa(q, keys, values, rows) if format is KVFormat.PLAIN else None,
    )


def page_cases(device: torch.device, sizes: Sizes, formats: tuple[KVFormat, ...]) -> Iterator[Case]:
    """Writing the tokens of a step, and copying blocks."""
    generator = torch.Generator(device).manual_seed(1)
    shape = (sizes.prompt, sizes.num_kv_heads, sizes.head_dim)
    k, v = (_random(generator, device, sizes, shape) for _ in range(2))
    num_blocks = -(-sizes.prompt // BLOCK)
    slots = torch.randperm(num_blocks * BLOCK, generator=generator, device=device)[: sizes.prompt]
    for format in formats:
        _, kv = make_pages(device, sizes, format, num_blocks)
        step = {KVFormat.PLAIN: 0.0, KVFormat.INT8: 1 / 254, KVFormat.FP8_E4M3: 1 / 16, KVFormat.FP8_E5M2: 1 / 8}[
            format
        ]

        def run(kv: PagedKV = kv) -> Tensor:
            write_kv(k, v, slots, kv, 1)
            found = kv.codes[slots // BLOCK, 1, 0, slots % BLOCK].double()
            return (
                found
                if kv.scales is None
                else found * kv.scales[slots // BLOCK, 1, 0, slots % BLOCK].double()[..., None]
            )

        yield Case(
            name=f"write_kv.{format}",
            run=run,
            wanted=lambda: k.double(),
            tolerance=float(k.abs().max()) * step * 1.01,
            num_bytes=2 * k.numel() * (k.element_size() + kv.codes.element_size()),
        )
    pool, _ = make_pages(device, sizes, KVFormat.PLAIN, 2 * num_blocks)
    pool.copy_(torch.randn(pool.shape, generator=generator, device=device))
    pairs = torch.randperm(2 * num_blocks, generator=generator, device=device).view(-1, 2)

    def copied() -> Tensor:
        copy_blocks(pool, pairs)
        return pool[pairs[:, 1]]

    yield Case(
        name="copy_blocks",
        run=copied,
        wanted=lambda: pool[pairs[:, 0]].double(),
        tolerance=0.0,
        num_bytes=2 * len(pairs) * pool[0].numel() * pool.element_size(),
    )


def row_cases(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """Norm, rotation and gate of a prompt's rows."""
    generator = torch.Generator(device).manual_seed(2)
    size, num_rows, eps = torch.finfo(sizes.dtype).bits // 8, sizes.prompt, 1e-5
    x, weight = (_random(generator, device, sizes, shape) for shape in ((num_rows, sizes.hidden), (sizes.hidden,)))
    close = 6e-2 if sizes.dtype == torch.bfloat16 else 8e-3
    yield Case(
        name="rms_norm.residual",
        run=lambda: rms_norm(x, weight, eps, torch.zeros_like(x)),
        wanted=lambda: F.rms_norm(x.double(), (sizes.hidden,), weight.double(), eps),
        tolerance=close,
        num_bytes=4 * x.numel() * size,
        torch_run=lambda: F.rms_norm(x + x, (sizes.hidden,), weight, eps),
    )
    heads = _random(generator, device, sizes, (num_rows, sizes.num_heads + sizes.num_kv_heads, sizes.head_dim))
    angles = torch.rand(num_rows, 1, sizes.head_dim // 2, generator=generator, device=device)
    table = torch.polar(torch.ones_like(angles), angles)

    def turned() -> Tensor:
        copy = heads.clone()
        rotary(copy, torch.view_as_real(table).squeeze(1))
        return copy

    yield Case(
        name="rotary",
        run=turned,
        wanted=lambda: torch.view_as_real(
            torch.view_as_complex(heads.double().unflatten(-1, (-1, 2))) * table.to(torch.complex128)
        ).flatten(-2),
        tolerance=close,
        num_bytes=4 * heads.numel() * size,
    )
    both = _random(generator, device, sizes, (num_rows, 2 * sizes.intermediate))
    gate, up = both.chunk(2, dim=-1)
    yield Case(
        name="silu_mul",
        run=lambda: silu_mul(both),
        wanted=lambda: F.silu(gate.double()) * up.double(),
        tolerance=2 * close,
        num_bytes=3 * up.numel() * size,
        torch_run=lambda: F.silu(gate) * up,
    )


def draw_cases(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """Log-sum of exponentials and draws over the vocabulary."""
    generator = torch.Generator(device).manual_seed(3)
    logits = torch.randn(sizes.num_rows, sizes.vocab, generator=generator, device=device) * 4
    ones = torch.ones(sizes.num_rows, device=device)

    def stats() -> Tensor:
        peak, total = softmax_stats(logits, ones)
        return peak.double() + total.log()

    yield Case(
        name="softmax_stats",
        run=stats,
        wanted=lambda: logits.double().logsumexp(dim=1),
        tolerance=1e-4,
        num_bytes=logits.numel() * 4,
        torch_run=lambda: logits.logsumexp(dim=1),
    )
    keys = torch.arange(sizes.num_rows, device=device) * 7919 + 1
    cold = torch.full((sizes.num_rows,), 1e-6, dtype=torch.float64, device=device)
    yield Case(
        name="gumbel_argmax",
        run=lambda: gumbel_argmax(logits, cold, keys),
        wanted=lambda: logits.argmax(dim=1).double(),
        tolerance=0.0,
        num_bytes=logits.numel() * 4,
        torch_run=lambda: logits.argmax(dim=1),
    )


def _random(generator: torch.Generator, device: torch.device, sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator, device=device).to(sizes.dtype)


def _sdpa(q: Tensor, keys: list[Tensor], values: list[Tensor], rows: list[tuple[int, int]]) -> Callable[[], object]:
    """Torch's attention over equal rows whose keys lie together: what paging has to compare with."""
    num_rows, count = len(rows), rows[0][1]
    q_RNTH = q.unflatten(0, (num_rows, count)).transpose(1, 2).contiguous()
    k_RGSH, v_RGSH = (torch.stack(x).transpose(1, 2).contiguous() for x in (keys, values))
    if count == rows[0][0] + count:
        return lambda: F.scaled_dot_product_attention(q_RNTH, k_RGSH, v_RGSH, is_causal=True, enable_gqa=True)
    if count == 1:
        return lambda: F.scaled_dot_product_attention(q_RNTH, k_RGSH, v_RGSH, enable_gqa=True)
    mask = torch.ones(count, k_RGSH.shape[2], dtype=torch.bool, device=q.device).tril(rows[0][0])
    return lambda: F.scaled_dot_product_attention(q_RNTH, k_RGSH, v_RGSH, attn_mask=mask, enable_gqa=True)
