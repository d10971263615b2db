"""The platform around edge builders: what tests submit, follow, kill and download."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from checkpoints import edit_config, make_llama
from fakes.gateway_world import World
from fakes.scripted_worker import TOKEN

import octavo
from octavo_common import store
from octavo_common.jobs.model import ProcessRecord

# Few windows: what is tested here is the way, not the numbers.
QUICK = "calibration: {num_windows: 2}\nevaluation: {num_windows: 1}\n"
LEASE_S = 2.0
# A stage of the small model takes seconds; a machine with other work takes longer.
PATIENCE_S = 120.0


class Place:
    """A checkpoint, and where builders keep what they make."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.model = folder / "tiny"
        make_llama(self.model, num_hidden_layers=1)

    def other_model(self, folder: Path, **config: Any) -> Path:
        """The same checkpoint with another configuration."""
        shutil.copytree(self.model, folder)
        edit_config(folder, **config)
        return folder


class Builder:
    """One `python -m octavo_edge serve`."""

    def __init__(self, process: asyncio.subprocess.Process, record: ProcessRecord, log: Path) -> None:
        self.process, self.record, self._log = process, record, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def children(self) -> list[psutil.Process]:
        """The processes of its build."""
        return psutil.Process(self.process.pid).children(recursive=True)

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self.process.wait()


class BuilderWorld:
    def __init__(self, gateways: World, place: Place, folder: Path, client: octavo.AsyncClient, port: int) -> None:
        self.gateways, self.place, self.folder, self.client, self.port = gateways, place, folder, client, port
        self.builds = client.builds
        self.placement = store.PlacementStore(gateways.database)
        self._num_builders = 0

    @classmethod
    async def make(cls, gateways: World, place: Place, folder: Path) -> BuilderWorld:
        gateway = await gateways.gateway()
        client = await gateways.stack.enter_async_context(
            octavo.AsyncClient(f"127.0.0.1:{gateway.port}", api_key=gateways.key)
        )
        return cls(gateways, place, folder, client, gateway.port)

    async def client_of(self, key: str) -> octavo.AsyncClient:
        return await self.gateways.stack.enter_async_context(octavo.AsyncClient(f"127.0.0.1:{self.port}", api_key=key))

    async def builder(self, *, data_dir: Path | None = None, **settings: str) -> Builder:
        """Start a builder and wait until it is known."""
        self._num_builders += 1
        log = self.folder / f"builder-{self._num_builders}.log"
        environ = {
            "OCTAVO_DATABASE_URL": self.gateways.dsn,
            "OCTAVO_INTERNAL_TOKEN": TOKEN,
            "OCTAVO_DATA_DIR": str(data_dir or self.place.data_dir),
            "OCTAVO_LEASE_S": str(LEASE_S),
            "OCTAVO_EDGE_NUM_THREADS": "1",
            **settings,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "octavo_edge", "serve"), env=kept | environ, stdout=stream, stderr=stream
            )
        self.gateways.stack.push_async_callback(_end, process)
        async with asyncio.timeout(30):
            while True:
                assert process.returncode is None, log.read_text()
                found = [one for one in await self.gateways.processes.list("edge_builder") if one.pid == process.pid]
                if found:
                    return Builder(process, found[0], log)
                await asyncio.sleep(0.05)

    async def submit(self, recipe: str = QUICK, /, **parameters: Any) -> octavo.Build:
        values = {"targets": "onnxruntime", "recipe_yaml": recipe, "context_length": 32, "ars": (8, 1)}
        return await self.builds.submit(str(parameters.pop("model", self.place.model)), **{**values, **parameters})

    async def follow(
        self, build: octavo.Build, until: Callable[[octavo.BuildEvent], bool] = lambda event: False
    ) -> list[octavo.BuildEvent]:
        """What a watch tells, until the build has ended or one of its events is reached."""
        events: list[octavo.BuildEvent] = []
        async with asyncio.timeout(PATIENCE_S):
            watching = self.builds.watch(build.id)
            async for event in watching:
                events.append(event)
                if until(event):
                    break
            await watching.aclose()
        return events

    async def end(self, build: octavo.Build) -> octavo.Build:
        """Wait for the build's end."""
        return await self.builds.wait(build.id, timeout_s=PATIENCE_S)

    async def reaped(self, build: octavo.Build) -> None:
        """Do what the scheduler that leads does, until the build waits again."""
        async with asyncio.timeout(30):
            while UUID(build.id) not in {reaped.id for reaped in await self.placement.reap()}:
                await asyncio.sleep(0.1)


def stages(events: list[octavo.BuildEvent]) -> list[tuple[str, bool]]:
    """The stages that ended, and whether they were there before."""
    return [(event.stage, event.cached) for event in events if isinstance(event, octavo.BuildStage)]


def in_stage(stage: str) -> Callable[[octavo.BuildEvent], bool]:
    """Whether an event says that this stage is at work."""
    return lambda event: isinstance(event, octavo.BuildProgress) and event.stage == stage


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
