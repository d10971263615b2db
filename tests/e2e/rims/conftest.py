"""One platform for all tests of this folder: the demo model, and a tiny model with a small pool and a bad template."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo_process import Octavo
from rims_world import TINY, TINY_POOL_BYTES, Rims

from octavo import Client
from octavo_common.db.engine import connect
from octavo_common.jobs.model import TenantLimits
from octavo_common.store import KeyStore
from octavo_common.store.keys import TenantStore

TEMPLATE = """{%- set text = messages[0]['content'] -%}
{%- if text == 'loop' -%}
    {%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- for c in range(99999) -%}
    {%- endfor -%}{%- endfor -%}{%- endfor -%}
{%- elif text == 'reach' -%}{{ text.__class__.__mro__[1].__subclasses__() }}
{%- elif text == 'grow' -%}
    {%- set n = namespace(s=text) -%}{%- for a in range(99999) -%}{%- set n.s = n.s ~ n.s -%}{%- endfor -%}{{ n.s }}
{%- elif text == 'long' -%}{%- for a in range(99999) -%}{{ text ~ '-' * 99 }}{%- endfor -%}
{%- elif text == 'write' -%}{%- set _ = messages.append(text) -%}
{%- elif text == 'refuse' -%}{{ raise_exception('no such talk here') }}
{%- else -%}{{ text }}{%- endif -%}"""


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, demo_model_path: Path) -> Iterator[Octavo]:
    """A platform with one worker of the demo model."""
    data_dir = tmp_path_factory.mktemp("rims").resolve()
    (data_dir / "models").symlink_to(demo_model_path.parents[1])
    running = Octavo(data_dir)
    try:
        running.ok("up", "--detach", "--wait", "--no-console", "--timeout", "240", timeout_s=260)
        yield running
    finally:
        running.run("down")
        assert running.processes() == []


@pytest.fixture(scope="package")
def rims(platform: Octavo) -> Rims:
    """How to reach it, with keys of two tenants."""
    status = platform.status()
    secrets = platform.data_dir / "secrets"

    async def other_key() -> str:
        database = connect(_dsn(platform), pool_size=1)
        try:
            return await KeyStore(database).create("other", "user", "test")
        finally:
            await database.dispose()

    return Rims(
        data_dir=platform.data_dir,
        grpc=status["grpc"][0],
        http=status["http"][0],
        key=(secrets / "user_key").read_text().strip(),
        admin_key=(secrets / "admin_key").read_text().strip(),
        other_key=asyncio.run(other_key()),
    )


@pytest.fixture
def one_job_tenant(platform: Octavo) -> str:
    """A key of a tenant that may queue one job and run none."""

    async def make() -> str:
        database = connect(_dsn(platform), pool_size=1)
        try:
            await TenantStore(database).set_limits("small", TenantLimits(max_running=0, max_queued=1))
            return await KeyStore(database).create("small", "user", "test")
        finally:
            await database.dispose()

    return asyncio.run(make())


@pytest.fixture(scope="package")
def tiny(platform: Octavo, rims: Rims, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a second model on the platform; its log lies beside those of the others."""
    from checkpoints import make_llama

    folder = tmp_path_factory.mktemp("tiny")
    make_llama(folder, max_position_embeddings=512, num_attention_heads=6, num_key_value_heads=2)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    environ = {
        **platform.environ(),
        "OCTAVO_DATABASE_URL": _dsn(platform),
        "OCTAVO_WORKER_MODEL": str(folder),
        "OCTAVO_WORKER_MODEL_NAME": TINY,
        "OCTAVO_WORKER_KV_BYTES": str(TINY_POOL_BYTES),
        "OCTAVO_WORKER_NUM_THREADS": "1",
        "OCTAVO_WORKER_PRECISION": "float32",
    }
    with (platform.data_dir / "logs" / "worker-tiny.log").open("wb") as log:
        worker = subprocess.Popen([sys.executable, "-m", "octavo_worker"], env=environ, stderr=log)
        try:
            with rims.client() as client:
                _until_served(client, worker)
            yield TINY
        finally:
            worker.terminate()
            assert worker.wait(30) == 0


def _until_served(client: Client, worker: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not any(model.name == TINY for model in client.models()):
        assert worker.poll() is None and time.monotonic() < end, "the tiny worker does not come up"
        time.sleep(0.3)


def _dsn(platform: Octavo) -> str:
    return json.loads((platform.data_dir / "pg.json").read_text())["dsn"]
