"""The process as it is started in earnest, with a small random model; the oracle is transformers."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.tiny_worker import TOKEN, read, until

from octavo.v1 import worker_pb2, worker_pb2_grpc
from octavo_common import ids, store
from octavo_common.db.engine import connect
from octavo_common.exits import MISCONFIGURED
from octavo_common.jobs.model import Assignment, JobState, NewJob
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.rpc.channel import internal_channel

PROMPT = [5, 80, 200, 33, 7, 7, 120, 61, 9, 250, 14, 77, 3, 190, 41, 88, 23, 5]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> tuple[Path, list[int]]:
    """A model directory, and the greedy continuation of PROMPT by transformers."""
    import torch
    from fakes.small_tokenizers import byte_level_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(path)
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    output = model.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, pad_token_id=0)
    return path, output[0, len(PROMPT) :].tolist()


@asynccontextmanager
async def process(dsn: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    values = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")},
        "OCTAVO_DATABASE_URL": dsn,
        "OCTAVO_INTERNAL_TOKEN": TOKEN,
        "OCTAVO_WORKER_KV_BYTES": str(1 << 22),
        "OCTAVO_WORKER_NUM_THREADS": "1",
        # What transformers computes in.
        "OCTAVO_WORKER_PRECISION": "float32",
        **env,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "octavo_worker",
        env=values,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


# Triton's interpreter takes the place of a GPU.
DEVICES = {"cpu": {}, "gpu": {"OCTAVO_WORKER_DEVICE": "cuda", "TRITON_INTERPRET": "1"}}


@pytest.mark.parametrize("device", DEVICES)
async def test_a_worker_process_serves_a_checkpoint_and_ends_on_sigterm(pg_dsn, checkpoint, device):
    path, expected = checkpoint
    pool = connect(pg_dsn)
    processes, jobs, placement = store.ProcessStore(pool), store.JobStore(pool), store.PlacementStore(pool)
    try:
        env = {"OCTAVO_WORKER_MODEL": str(path), "OCTAVO_WORKER_TYPO": "1", **DEVICES[device]}
        async with process(pg_dsn, **env) as child:
            (worker,) = await until(lambda: processes.list("worker", 3600.0), bool, timeout_s=90)
            assert worker.pid == child.pid
            assert ("triton_paged" in worker.card.numerics_id) == (device == "gpu")
            spec = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)
            new = NewJob(
                id=ids.new_job_id(),
                tenant="acme",
                model=worker.card.name,
                model_digest=worker.card.digest,
                payload=spec.to_json(),
                prompt_ids=tuple(PROMPT),
            )
            job, _ = await jobs.submit(new, max_queued=None)
            await placement.assign([Assignment(job_id=job.id, fence=0, worker_id=worker.id)])
            async with internal_channel(worker.address, TOKEN) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                call = stub.Stream(worker_pb2.StreamRequest(job_id=str(job.id), fence=1), timeout=30)
                tokens, _, end = await read(call)
            assert tokens == expected
            assert end is not None
            assert (await jobs.get(job.id, tenant=None)).state is JobState.SUCCEEDED
            child.send_signal(signal.SIGTERM)
            out, err = await asyncio.wait_for(child.communicate(), 15)
            assert (child.returncode, out) == (0, b"")
            assert b"settings.unknown" in err
            assert not await processes.list("worker", 3600.0)
    finally:
        await pool.dispose()


async def test_a_gpu_that_is_asked_for_and_not_there_is_said_with_its_reasons(pg_dsn, checkpoint):
    path, _ = checkpoint
    # The first GPU is none.
    env = {"OCTAVO_WORKER_MODEL": str(path), "OCTAVO_WORKER_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    async with process(pg_dsn, **env) as child:
        out, err = await child.communicate()
        assert child.returncode != 0
        assert out == b""
        assert b"no model can be computed on a GPU here: no GPU: " in err
        assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"OCTAVO_WORKER_MODEL": "/nowhere/at/all"}, "there is no model"),
        ({}, "no model is set"),
        ({"OCTAVO_WORKER_MODEL": "x", "OCTAVO_INTERNAL_TOKEN": ""}, "no token"),
        ({"OCTAVO_WORKER_MODEL": "x", "OCTAVO_WORKER_MAX_JOBS": "many"}, "OCTAVO_WORKER_MAX_JOBS"),
    ],
)
async def test_what_is_missing_is_said_in_one_line(pg_dsn, tmp_path, env, says):
    async with process(pg_dsn, OCTAVO_DATA_DIR=str(tmp_path), **env) as child:
        _, err = await child.communicate()
        assert child.returncode == MISCONFIGURED
        lines = [line for line in err.decode().splitlines() if line.startswith("octavo-worker:")]
        assert len(lines) == 1
        assert says in lines[0]
