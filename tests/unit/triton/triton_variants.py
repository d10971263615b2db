"""Launches of all kernels over shapes, dtypes and formats, with tensors that have no memory; and pairwise choices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from octavo_worker.kernels.triton.combine import combine_launch
from octavo_worker.kernels.triton.copy_blocks import copy_blocks_launch
from octavo_worker.kernels.triton.decode_attention import decode_attention_launch
from octavo_worker.kernels.triton.extend_attention import ExtendPlan, extend_attention_launch, max_queries
from octavo_worker.kernels.triton.gumbel_argmax import gumbel_argmax_launch
from octavo_worker.kernels.triton.head_norm import head_norm_launch
from octavo_worker.kernels.triton.launch import Launch
from octavo_worker.kernels.triton.pages import KVFormat, region_bytes, view_pages
from octavo_worker.kernels.triton.rms_norm import rms_norm_launch
from octavo_worker.kernels.triton.rotary import rotary_launch
from octavo_worker.kernels.triton.silu_mul import silu_mul_launch
from octavo_worker.kernels.triton.softmax_stats import softmax_stats_launch
from octavo_worker.kernels.triton.write_kv import write_kv_launch

HEADS = (64, 80, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ARCHES = (80, 90, 100)
INT, LONG, DOUBLE = torch.int32, torch.int64, torch.float64
T, R, G = 80, 5, 8


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kernel: what varies, and how a choice becomes a launch."""

    name: str
    factors: Mapping[str, Sequence[Any]]
    make: Callable[..., Launch]

    def choices(self):
        """Every choice that exists: e4m3 does not before sm_90."""
        names = list(self.factors)
        for values in itertools.product(*self.factors.values()):
            choice = dict(zip(names, values, strict=True))
            if not (choice.get("format") is KVFormat.FP8_E4M3 and choice["arch"] == 80):
                yield choice


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def pages(format, head_dim, dtype):
    sizes = {"num_layers": 2, "block_size": 16, "num_kv_heads": G, "head_dim": head_dim}
    if format is KVFormat.PLAIN:
        return view_pages(empty(7, 2, 2, 16, G, head_dim, dtype=dtype), format, **sizes)
    return view_pages(empty(7, region_bytes(format, **sizes), dtype=torch.uint8), format, **sizes)


def write(head_dim, dtype, format):
    fused = empty(T, 3 * G, head_dim, dtype=dtype)
    return write_kv_launch(
        fused[:, G : 2 * G], fused[:, 2 * G :], empty(T, dtype=LONG), pages(format, head_dim, dtype), 1
    )


def decode(head_dim, dtype, format, group):
    parts, lse = empty(R, G * group, 4, head_dim), empty(R, G * group, 4)
    return decode_attention_launch(
        empty(T, G * (group + 2), head_dim, dtype=dtype)[:, : G * group],
        pages(format, head_dim, dtype),
        1,
        entries_D2=empty(R, 2, dtype=INT),
        tables_RB=empty(R, 32, dtype=INT),
        limits_T=empty(T, dtype=INT),
        out_DNCH=parts,
        lse_DNC=lse,
        window=4096,
    )


def join(head_dim, dtype):
    return combine_launch(
        empty(R, 32, 4, head_dim),
        empty(R, 32, 4),
        entries_D2=empty(R, 2, dtype=INT),
        limits_T=empty(T, dtype=INT),
        out_TNH=empty(T, 32, head_dim, dtype=dtype),
    )


def extend(head_dim, dtype, format, mask, pairs):
    tree, window = "tree" in mask, "window" in mask
    plan = ExtendPlan(
        tiles_J5=empty(9, 5, dtype=INT),
        tables_RB=empty(R, 32, dtype=INT),
        limits_T=empty(T, dtype=INT),
        bits_T=empty(T, dtype=LONG) if tree else None,
        depths_T=empty(T, dtype=INT) if tree else None,
        tree_firsts_R=empty(R, dtype=INT) if tree else None,
        queries=max_queries(head_dim, dtype, pairs),
    )
    q = empty(T, 6 * G, head_dim, dtype=dtype)[:, : 4 * G]
    out = empty(T, 4 * G, head_dim, dtype=dtype)
    return extend_attention_launch(q, pages(format, head_dim, dtype), 1, plan, out, window=4096 if window else None)


def norm(width, dtype, residual):
    x = empty(T, width, dtype=dtype)
    # A model's norms stay float32 beside weights of 16 bits.
    return rms_norm_launch(x, empty(width), 1e-5, x, x if residual else None)


def norm_heads(head_dim, dtype):
    return head_norm_launch(empty(T, 6 * G, head_dim, dtype=dtype)[:, : 5 * G], empty(5 * G, head_dim), 1e-5)


def turn(head_dim, dtype):
    return rotary_launch(empty(T, 6 * G, head_dim, dtype=dtype)[:, : 5 * G], empty(T, head_dim // 2, 2))


def gate(width, dtype):
    return silu_mul_launch(empty(T, 2 * width, dtype=dtype), empty(T, width, dtype=dtype))


def stats(vocab, dtype):
    num_parts = -(-vocab // 4096)
    return softmax_stats_launch(empty(R, vocab, dtype=dtype), empty(R), empty(R, num_parts), empty(R, num_parts))


def draw(vocab, dtype):
    num_parts = -(-vocab // 1024)
    return gumbel_argmax_launch(
        empty(R, vocab, dtype=dtype),
        empty(R, dtype=DOUBLE),
        empty(R, dtype=LONG),
        empty(R, num_parts, dtype=DOUBLE),
        empty(R, num_parts, dtype=LONG),
    )


def copy(size, dtype):
    return copy_blocks_launch(empty(7, 2, 2, 16, G, size, dtype=dtype), empty(R, 2, dtype=LONG))


_COMMON = {"dtype": DTYPES, "arch": ARCHES}
_HEADS = {"head_dim": HEADS, **_COMMON}
_QUICK = {"head_dim": (64, 80, 256), "width": (576, 16384)}
_PAGES = {"format": tuple(KVFormat), **_HEADS}
FAMILIES = (
    Family(name="write_kv", factors=_PAGES, make=write),
    Family(name="decode_attention", factors={**_PAGES, "group": (1, 7, 16)}, make=decode),
    Family(name="combine", factors=_HEADS, make=join),
    Family(
        name="extend_attention",
        factors={**_PAGES, "mask": ("causal", "window", "tree and window"), "pairs": (16, 4096)},
        make=extend,
    ),
    Family(name="copy_blocks", factors={"size": (96,), "dtype": (torch.bfloat16,), "arch": ARCHES}, make=copy),
    Family(
        name="rms_norm", factors={"width": (576, 4096, 8192, 16384), "residual": (False, True), **_COMMON}, make=norm
    ),
    Family(name="head_norm", factors=_HEADS, make=norm_heads),
    Family(name="rotary", factors=_HEADS, make=turn),
    Family(name="silu_mul", factors={"width": (1536, 14336), **_COMMON}, make=gate),
    Family(name="softmax_stats", factors={"vocab": (49152, 128256), **_COMMON}, make=stats),
    Family(name="gumbel_argmax", factors={"vocab": (49152, 128256), **_COMMON}, make=draw),
)


def pairwise(family):
    """Few choices in which every two values of two factors meet, if they meet anywhere.

    Of head dims and widths those that compile to something else: 96 is padded and masked as 80 is, 128 is 80 unmasked.
    """
    quick = {name: values for name, values in _QUICK.items() if name in family.factors}
    choices = list(replace(family, factors={**family.factors, **quick}).choices())
    open_pairs = {pair for choice in choices for pair in _pairs(choice)}
    taken = []
    while open_pairs:
        best = max(choices, key=lambda choice: len(open_pairs & _pairs(choice)))
        taken.append(best)
        open_pairs -= _pairs(best)
    return taken


def _pairs(choice):
    return set(itertools.combinations(choice.items(), 2))
