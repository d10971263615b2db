"""A worker tells over gRPC who holds its blocks, and what its steps found in the cache."""

import asyncio

import grpc
import pytest
from fakes.tiny_worker import TinyWorker, read, until

from octavo.v1 import pool_pb2, worker_pb2

PROMPT = tuple(range(1, 14))


@pytest.fixture
async def worker(pg_dsn, bundle):
    async with TinyWorker(pg_dsn, bundle) as tiny:
        yield tiny


async def look(worker) -> pool_pb2.Pool:
    return (await worker.stub.GetPool(pool_pb2.GetPoolRequest())).pool


async def test_an_idle_pool_is_free(worker):
    pool = await look(worker)
    assert (pool.num_blocks, pool.block_size, pool.num_free_blocks, pool.blocks_per_cell) == (64, 4, 64, 1)
    assert list(pool.cell_used) == [0] * 64 and list(pool.cell_owner) == [-1] * 64 and not pool.sequences


async def test_blocks_are_told_with_the_jobs_that_hold_them(worker):
    worker.executor.step_s = 0.05
    jobs = [await worker.start((n, *PROMPT), 20) for n in (1, 2)]
    streams = [worker.stream(job) for job in jobs]
    for stream in streams:
        await anext(aiter(stream))
    pool = await look(worker)
    assert {sequence.job_id for sequence in pool.sequences} == {str(job.id) for job in jobs}
    for index, sequence in enumerate(pool.sequences):
        assert (sequence.phase, sequence.num_prompt_tokens) == ("running", 14)
        assert sequence.num_blocks == len(sequence.blocks) == -(-sequence.num_tokens // 4)
        assert [pool.cell_owner[block] for block in sequence.blocks] == [index] * sequence.num_blocks
    assert pool.num_used_blocks == sum(s.num_blocks for s in pool.sequences) == sum(pool.cell_used)
    for stream in streams:
        stream.cancel()
    worker.executor.step_s = 0.0
    await asyncio.gather(*(worker.ended(job) for job in jobs))


async def test_a_hanging_engine_is_said_and_does_not_hang_who_asks(worker, monkeypatch):
    monkeypatch.setattr("octavo_worker.service.POOL_WAIT_S", 0.1)
    worker.executor.step_s = 1.0
    job = await worker.start(PROMPT, 1)
    await until(lambda: worker.executor.num_begun, bool)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await look(worker)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    worker.executor.step_s = 0.0
    await worker.ended(job)
    assert (await look(worker)).num_used_blocks == 0


async def test_records_tell_rows_and_prefix_hits(worker):
    for _ in range(2):
        await read(worker.stream(await worker.start(PROMPT, 3)))
    records = (await worker.stub.GetRecords(worker_pb2.GetRecordsRequest())).records
    assert sum(record.num_prefix_asked_tokens for record in records) == 24
    assert sum(record.num_prefix_found_tokens for record in records) == 12
    assert max(record.num_rows for record in records) == 1
    assert not any(record.num_swapped for record in records)
