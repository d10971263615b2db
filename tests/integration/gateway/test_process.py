"""The gateway as a process: it announces itself, serves both APIs, and ends in good order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
import httpx
import pytest
from fakes.gateway_world import Client, World
from fakes.scripted_worker import TOKEN

pytestmark = pytest.mark.db
DETACH = 2


async def _start(world: World, tmp_path: Path, **environ: str) -> asyncio.subprocess.Process:
    settings = {
        "OCTAVO_DATABASE_URL": world.dsn,
        "OCTAVO_INTERNAL_TOKEN": TOKEN,
        "OCTAVO_DATA_DIR": str(tmp_path),
        "OCTAVO_GATEWAY_GRPC_PORT": "0",
        "OCTAVO_GATEWAY_HTTP_PORT": "0",
        "OCTAVO_GATEWAY_DRAIN_S": "1.5",
        "OCTAVO_GATEWAY_DIRECT": "0",
        **environ,
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}
    log = (tmp_path / "log").open("wb")
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo_gateway", env=kept | settings, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    finally:
        log.close()


async def test_a_process_serves_both_apis_and_hands_its_streams_over(world: World, tmp_path: Path) -> None:
    worker = await world.worker()
    process = await _start(world, tmp_path, OCTAVO_GATEWAY_MAX_MESSAGE_BYTES="65536")
    try:
        async with asyncio.timeout(30):
            while not (found := await world.processes.list("gateway")):
                assert process.returncode is None, (tmp_path / "log").read_text()
                await asyncio.sleep(0.05)
        (row,) = found
        assert row.pid == process.pid
        async with httpx.AsyncClient(base_url=f"http://{row.http_address}", trust_env=False) as http:
            assert (await http.get("/health")).status_code == 200
            models = await http.get("/v1/models", headers={"authorization": f"Bearer {world.key}"})
            assert [m["id"] for m in models.json()["data"]] == ["tiny"]
            large = await http.post("/v1/completions", headers=dict(models.request.headers), content=b" " * 70_000)
            assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        client = Client(int(row.address.rpartition(":")[2]), world.key)
        world.stack.push_async_callback(client.channel.close)
        stream = client.generate(on_disconnect=DETACH)
        job_id = await stream.accepted()
        await worker.take(job_id)
        await worker.release_tokens(job_id, 2)
        await stream.tokens(2)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError, match=str(job_id)) as raised:
            await stream.rest()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(10):
            assert await process.wait() == 0
        assert await process.stdout.read() == b""  # type: ignore[union-attr]
        assert await world.processes.list("gateway") == []
        job = await world.job(job_id)
        assert (job.state.value, job.stream_owner, job.cancel_requested) == ("running", None, False)
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_missing_setting_is_one_line_with_a_hint(world: World, tmp_path: Path) -> None:
    process = await _start(world, tmp_path, OCTAVO_DATABASE_URL="")
    assert await process.wait() != 0
    text = (tmp_path / "log").read_text()
    assert "no database is set" in text
    assert "Traceback" not in text
