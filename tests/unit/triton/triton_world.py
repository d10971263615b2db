"""Random pages, rows and trees for the kernels, and attention by brute force in float64.

NaN lies wherever nothing may be read: free pages, slots behind a row's last token, other layers.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import Phase, settings

from octavo_worker.kernels.triton.pages import KVFormat, PagedKV, region_bytes, view_pages

BLOCK = 16
LAYERS, LAYER = 2, 1
# Examples of each property; many more by `make kernels`.
EXAMPLES = int(os.environ.get("OCTAVO_TEST_TRITON_EXAMPLES", "5"))
# Not shrunk: a run takes seconds, and a failing example is small enough to read. The few are always the same ones.
SOME = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    derandomize=EXAMPLES <= 5,
    database=None,
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of results around 1. The interpreter cuts bfloat16 off where a GPU rounds.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: tokens that are computed, tokens that are fed, and the parents of the tree that ends them."""

    start: int
    count: int
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class World:
    """Pages and queries of some rows."""

    rows: tuple[Row, ...]
    pool: torch.Tensor
    kv: PagedKV
    q: torch.Tensor  # [T, N, H]
    k: torch.Tensor  # [T, G, H]
    v: torch.Tensor
    tables: np.ndarray
    slots: np.ndarray

    @property
    def starts(self):
        return np.array([row.start for row in self.rows], np.int32)

    @property
    def counts(self):
        return np.array([row.count for row in self.rows], np.int32)

    @property
    def trees(self):
        return tuple(row.parents for row in self.rows)


def encode(x, format):
    """(codes, scales) of vectors, as torch makes them."""
    x = x.float()
    scale = x.abs().amax(-1) / format.largest
    scaled = x / torch.where(scale > 0, scale, 1.0)[..., None]
    if format is KVFormat.INT8:
        return torch.floor(scaled + 0.5).to(torch.int8), scale
    codes = scaled.clamp(-format.largest, format.largest).to(format.code_dtype)
    # The kernel makes no negative zeros.
    return (codes.float() + 0.0).to(format.code_dtype), scale


def poisoned_pool(num_blocks, shape, dtype, format):
    _, num_kv_heads, head_dim = shape
    sizes = {"num_layers": LAYERS, "block_size": BLOCK, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    if format is KVFormat.PLAIN:
        pool = torch.full((num_blocks, LAYERS, 2, BLOCK, num_kv_heads, head_dim), math.nan, dtype=dtype)
    else:
        # Codes of 0x7f: NaN in both formats of 8 bits; scales of NaN for int8.
        pool = torch.full((num_blocks, region_bytes(format, **sizes)), 0x7F, dtype=torch.uint8)
    kv = view_pages(pool, format, **sizes)
    if kv.scales is not None:
        kv.scales.fill_(math.nan)
    return pool, kv


def put(kv, slots, k, v):
    """Store vectors `[P, G, H]` in one layer the plain way."""
    blocks, offsets = np.divmod(np.asarray(slots, np.int64), BLOCK)
    for index, x in enumerate((k, v)):
        codes, scales = (x.to(kv.codes.dtype), None) if kv.scales is None else encode(x, kv.format)
        # Bytes: torch cannot place every small float by index.
        kv.codes.view(torch.uint8)[blocks, LAYER, index, offsets] = codes.contiguous().view(torch.uint8)
        if kv.scales is not None:
            kv.scales[blocks, LAYER, index, offsets] = scales


def make_world(rows, shape, dtype=torch.float32, format=KVFormat.PLAIN, *, seed=0, fed_are_written=True):
    num_heads, num_kv_heads, head_dim = shape
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    counts = [-(-(row.start + row.count) // BLOCK) for row in rows]
    total = sum(counts) + 3
    order = random.permutation(total).tolist()
    # Entries behind a row's own blocks name a page that nobody may read.
    tables = np.full((len(rows), max(counts) + 1), order[-1], np.int32)
    pool, kv = poisoned_pool(total, shape, dtype, format)
    slots, taken = [], 0
    num_tokens = sum(row.count for row in rows)
    fused = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
    q, k, v = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    for index, (row, num_blocks) in enumerate(zip(rows, counts, strict=True)):
        tables[index, :num_blocks] = order[taken : taken + num_blocks]
        taken += num_blocks
        places = [int(tables[index, p // BLOCK]) * BLOCK + p % BLOCK for p in range(row.start + row.count)]
        past = torch.randn(2, row.start, num_kv_heads, head_dim).to(dtype)
        put(kv, places[: row.start], *past)
        if fed_are_written:
            first = len(slots)
            put(kv, places[row.start :], k[first : first + row.count], v[first : first + row.count])
        slots += places[row.start :]
    return World(rows=tuple(rows), pool=pool, kv=kv, q=q, k=k, v=v, tables=tables, slots=np.array(slots, np.int64))


def visible_keys(row, token, window):
    """Slots of the row that its fed token sees, from what a causal mask, a window and a tree mean."""
    num_chain = row.count - len(row.parents)
    if token < num_chain:
        position, extra = row.start + token, []
        keys = range(position + 1)
    else:
        node, extra = token - num_chain, []
        while node >= 0:
            extra.append(row.start + num_chain + node)
            node = row.parents[node]
        position = row.start + num_chain + len(extra) - 1
        keys = range(row.start + num_chain)
    low = 0 if window is None else position - window + 1
    return [s for s in keys if s >= low] + sorted(extra)


def expected(world, window=None):
    """Attention of all fed tokens in float64, token by token."""
    kv = world.kv
    num_tokens, num_heads, head_dim = world.q.shape
    group = num_heads // kv.codes.shape[4]
    out = torch.empty(num_tokens, num_heads, head_dim, dtype=torch.float64)
    at = 0
    for index, row in enumerate(world.rows):
        num_keys = row.start + row.count
        pages = torch.from_numpy(world.tables[index, : -(-num_keys // BLOCK)].astype(np.int64))
        codes = kv.codes[pages, LAYER].double()
        if kv.scales is not None:
            codes = codes * kv.scales[pages, LAYER].double()[..., None]
        k, v = (codes[:, i].flatten(0, 1)[:num_keys].repeat_interleave(group, dim=1) for i in (0, 1))
        hidden = torch.full((row.count, num_keys), -math.inf, dtype=torch.float64)
        for token in range(row.count):
            hidden[token, visible_keys(row, token, window)] = 0.0
        q = world.q[at : at + row.count].double()
        scores = torch.einsum("tnh,snh->nts", q, k) / math.sqrt(head_dim) + hidden
        out[at : at + row.count] = torch.einsum("nts,snh->tnh", scores.softmax(-1), v)
        at += row.count
    return out
