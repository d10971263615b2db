"""The Triton backend on a machine without a GPU: it says why, and the next backend is taken."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from octavo_worker.attention.base import AttentionNeed, KVSpec, NoAttentionBackend, select
from octavo_worker.attention.triton_paged import TritonAttention
from octavo_worker.kernels.triton.pages import KVFormat
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.computing import BackendDeps

DEPS = BackendDeps(num_heads=9, num_kv_heads=3, head_dim=64, block_size=16, dtype=torch.float32, num_threads=1)


def make_need(device="cpu", dtype="float32"):
    return AttentionNeed(device=device, dtype=dtype, num_heads=9, num_kv_heads=3, head_dim=64, block_size=16)


def test_without_a_gpu_it_gives_every_reason_and_another_is_taken():
    (backend,) = attention_backends(DEPS, "triton_paged")
    with pytest.raises(NoAttentionBackend, match=r"triton_paged: device cpu is not one of \['cuda'\]"):
        select([backend], make_need())
    if not torch.cuda.is_available():
        reasons = backend.reasons_against(make_need("cuda", "bfloat16"))
        assert len(reasons) == 1, reasons
        assert reasons[0].startswith("no GPU: ")
    assert select(attention_backends(DEPS, "auto"), make_need()).name == "cpu"


@pytest.mark.parametrize("format", list(KVFormat))
def test_a_block_is_one_region_whatever_the_format(format):
    backend = TritonAttention(num_heads=9, num_kv_heads=3, head_dim=64, block_size=16, kv_format=format)
    spec = KVSpec(num_blocks=7, num_layers=2, block_size=16, num_kv_heads=3, head_dim=64)
    shape, dtype = backend.kv_shape(spec), backend.kv_dtype(torch.bfloat16)
    block = torch.empty(shape, dtype=dtype, device="meta")[0]
    num_vectors = 2 * 2 * 16 * 3
    assert block.nbytes == num_vectors * (2 * 64 if format is KVFormat.PLAIN else 64 + 4)
    assert shape[0] == 7


def test_the_worker_needs_no_triton():
    code = """
import sys
sys.modules["triton"] = None
import torch
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.computing import BackendDeps
from octavo_worker.attention.base import AttentionNeed
deps = BackendDeps(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float16, num_threads=1)
need = AttentionNeed(device="cuda", dtype="float16", num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
print(attention_backends(deps, "triton_paged")[0].reasons_against(need)[0])
import octavo_worker.app
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("triton cannot be imported")
