"""The backend and recorded decode steps in Triton's interpreter: against the plain backend, and bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from triton_world import BLOCK, LAYER, LAYERS, Row, expected, make_world

from octavo_worker.attention.base import AttentionNeed, AttnBatch, KVSpec, select
from octavo_worker.attention.reference import ReferenceAttention
from octavo_worker.attention.triton_paged import TritonAttention
from octavo_worker.kernels.triton.pages import KVFormat
from octavo_worker.kernels.triton.rms_norm import rms_norm
from octavo_worker.kernels.triton.rotary import rotary
from octavo_worker.kernels.triton.silu_mul import silu_mul
from octavo_worker.models.base import ModelConfig, RopeConfig
from octavo_worker.models.layers import Rope
from octavo_worker.runtime.graphs import GraphRunner, Rerun
from octavo_worker.runtime.inputs import ForwardInputs

N, G, H, HIDDEN = 4, 2, 64, 32
SHAPE = (N, G, H)
NEED = AttentionNeed(device="cuda", dtype="float32", num_heads=N, num_kv_heads=G, head_dim=H, block_size=BLOCK)


def make_backend(format=KVFormat.PLAIN, shape=SHAPE):
    num_heads, num_kv_heads, head_dim = shape
    return TritonAttention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK,
        dtype=torch.float32,
        kv_format=format,
    )


def batch_of(world):
    return AttnBatch(starts_R=world.starts, num_tokens_R=world.counts, tables_RB=world.tables, slots_T=world.slots)


@pytest.mark.parametrize("window", [None, 20])
def test_the_backend_writes_and_attends_as_the_plain_one(window):
    rows = [Row(start=40, count=1), Row(start=7, count=20), Row(start=0, count=1)]
    world = make_world(rows, SHAPE, fed_are_written=False)
    backend, plain = make_backend(), ReferenceAttention(block_size=BLOCK)
    wanted_pool = world.pool.double()
    batch = batch_of(world)
    wanted = plain.attend(
        world.q.double(), world.k.double(), world.v.double(), wanted_pool, plain.plan(batch), LAYER, window
    )
    found = backend.attend(world.q, world.k, world.v, world.pool, backend.plan(batch), LAYER, window)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    assert torch.equal(world.pool.double().nan_to_num(7), wanted_pool.nan_to_num(7))


@pytest.mark.parametrize("format", [f for f in KVFormat if f is not KVFormat.PLAIN])
def test_the_backend_keeps_pages_in_bytes(format):
    world = make_world([Row(start=18, count=1), Row(start=3, count=5)], SHAPE, format=format, fed_are_written=False)
    backend = make_backend(format)
    spec = KVSpec(num_blocks=world.pool.shape[0], num_layers=LAYERS, block_size=BLOCK, num_kv_heads=G, head_dim=H)
    assert backend.kv_shape(spec) == tuple(world.pool.shape)
    assert backend.kv_dtype(torch.float32) == world.pool.dtype
    found = backend.attend(world.q, world.k, world.v, world.pool, backend.plan(batch_of(world)), LAYER)
    torch.testing.assert_close(found.double(), expected(world), rtol=0, atol=1e-5)


def test_a_group_too_large_for_a_decode_tile_goes_the_other_way():
    shape = (40, 1, 64)
    world = make_world([Row(start=30, count=1), Row(start=0, count=1)], shape)
    backend = make_backend(shape=shape)
    plan = backend.plan(batch_of(world))
    assert backend.num_parts(batch_of(world)) is None
    found = backend.attend(world.q, world.k, world.v, world.pool, plan, LAYER)
    torch.testing.assert_close(found.double(), expected(world), rtol=0, atol=1e-5)


def test_the_interpreter_stands_for_a_gpu():
    assert select([make_backend()], NEED).name == "triton_paged"
    large = AttentionNeed(device="cpu", dtype="float64", num_heads=5, num_kv_heads=2, head_dim=512, block_size=BLOCK)
    reasons = make_backend().reasons_against(large)
    assert len(reasons) == 4, reasons


class Tiny:
    """A decoder of the kernels alone: embedding, and two layers of norm, rotation, attention and gate."""

    config = ModelConfig(
        family="tiny",
        num_layers=LAYERS,
        hidden=HIDDEN,
        num_heads=N,
        num_kv_heads=G,
        head_dim=H,
        intermediate=HIDDEN,
        vocab_size=50,
        rms_eps=1e-5,
        rope=RopeConfig(dim=H),
        tie_embeddings=True,
        context_length=1024,
    )

    def __init__(self):
        torch.manual_seed(3)
        self.embedding = torch.randn(50, HIDDEN)
        self.norm = torch.rand(HIDDEN) + 0.5
        self.layers = [
            (
                torch.randn((N + 2 * G) * H, HIDDEN) / 6,
                torch.randn(HIDDEN, N * H) / 16,
                torch.randn(2 * HIDDEN, HIDDEN) / 6,
            )
            for _ in range(LAYERS)
        ]
        self.rope = Rope(self.config.rope)
        self.num_runs = 0

    def forward(self, tokens_T, positions_T, attend, *, prompt_lengths_T=None):
        self.num_runs += 1
        stream = self.embedding[tokens_T]
        table = torch.view_as_real(self.rope.table(positions_T, None)).squeeze(1)
        out = torch.zeros_like(stream)
        for index, (qkv, o, gate_up) in enumerate(self.layers):
            heads = F.linear(rms_norm(out, self.norm, 1e-5, stream), qkv).view(len(tokens_T), -1, H)
            rotary(heads[:, : N + G], table)
            attended = attend(index, heads[:, :N], heads[:, N : N + G], heads[:, N + G :])
            out = F.linear(
                silu_mul(F.linear(F.linear(attended.reshape(len(tokens_T), -1), o), gate_up)), torch.eye(HIDDEN)
            )
        return rms_norm(out, self.norm, 1e-5, stream)

    def logits(self, hidden_SD):
        return F.linear(hidden_SD, self.embedding)


class Eager:
    """Runs every step as it is."""

    def __init__(self, model, attention, kv):
        self.model, self.attention, self.kv = model, attention, kv

    def forward(self, inputs):
        plan = self.attention.plan(inputs.attention)
        with torch.inference_mode():
            return self.model.forward(
                inputs.tokens_T,
                inputs.positions_T,
                lambda layer, q, k, v: self.attention.attend(q, k, v, self.kv, plan, layer),
            )


def inputs_of(starts, counts, tables):
    """A step of rows whose tables are given."""
    positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
    rows = np.repeat(np.arange(len(starts)), counts)
    slots = tables[rows, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    return ForwardInputs(
        tokens_T=torch.from_numpy(positions * 7 % 50),
        positions_T=torch.from_numpy(positions),
        prompt_lengths_T=torch.from_numpy(positions),
        attention=AttnBatch(
            starts_R=np.array(starts, np.int32),
            num_tokens_R=np.array(counts, np.int32),
            tables_RB=tables,
            slots_T=slots,
        ),
        wanted_S=torch.empty(0, dtype=torch.int64),
        wanted_ids=(),
        wanted_rows=(),
        scored_S=torch.empty(0, dtype=torch.int64),
        scored_ids=(),
        scored_tokens=(),
    )


def test_recorded_steps_match_plain_ones_whatever_the_bucket():
    tables = np.arange(1, 31, dtype=np.int32).reshape(5, 6)
    pools = [torch.full((31, LAYERS, 2, BLOCK, G, H), math.nan) for _ in range(2)]
    plain = Eager(Tiny(), make_backend(), pools[0])
    model = Tiny()
    graphs = GraphRunner(
        model=model,
        attention=make_backend(),
        kv=pools[1],
        runner=Eager(model, make_backend(), pools[1]),
        recorder=Rerun(),
        max_blocks=6,
        buckets=(1, 2, 4),
    )
    lengths = [0, 0, 0, 0, 0]

    def step(rows, counts):
        for row, count in zip(rows, counts, strict=True):
            lengths[row] += count
        inputs = inputs_of([lengths[r] - c for r, c in zip(rows, counts, strict=True)], counts, tables[rows])
        found, wanted = graphs.forward(inputs).clone(), plain.forward(inputs)
        # The linear maps around the kernels may add in another order for another number of rows.
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(pools[1], pools[0], rtol=0, atol=1e-5, equal_nan=True)

    step([0, 1, 2, 3, 4], [17, 3, 1, 30, 2])
    assert graphs.num_recordings == 0
    step([0, 1, 2], [1, 1, 1])
    assert graphs.num_recordings == 1
    # Fewer rows in the same bucket: the others' slots must not be written again.
    step([3, 0, 2, 1], [1, 1, 1, 1])
    step([2, 4, 3], [1, 1, 1])
    assert graphs.num_recordings == 1
    step([4], [1])
    step([1, 0], [1, 1])
    assert graphs.num_recordings == 3
    # More rows than the largest bucket, and a mixed step, run as they are.
    step([0, 1, 2, 3, 4], [1, 1, 1, 1, 1])
    step([0, 1], [1, 2])
    assert graphs.num_recordings == 3


def test_a_context_of_more_parts_is_another_recording():
    pool = torch.zeros(40, LAYERS, 2, BLOCK, G, H)
    model = Tiny()
    graphs = GraphRunner(
        model=model,
        attention=make_backend(),
        kv=pool,
        runner=Eager(model, make_backend(), pool),
        recorder=Rerun(),
        max_blocks=40,
    )
    tables = np.arange(40, dtype=np.int32).reshape(1, 40)
    for start, num_recordings in ((0, 1), (255, 1), (256, 2), (511, 2), (512, 3), (600, 3)):
        graphs.forward(inputs_of([start], [1], tables))
        assert graphs.num_recordings == num_recordings
    assert model.num_runs == 6 + 3
