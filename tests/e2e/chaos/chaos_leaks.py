"""Clients that go away at every stage, and what is left of them in the worker and the gateway."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
from chaos_cluster import Cluster, Process

from octavo.v1 import gateway_pb2, gateway_pb2_grpc

STAGES = ("queued", "waiting", "mid_chunk", "one_token")
# More rows than these the engine does not run at once, more jobs than these the worker does not take.
NUM_ROWS, NUM_JOBS = 4, 6
ENVIRON = {
    "OCTAVO_WORKER_MAX_SEQUENCES": str(NUM_ROWS),
    "OCTAVO_WORKER_MAX_JOBS": str(NUM_JOBS),
}
POLL_S = 0.01
# Of asyncio's own pool at most; the clients of one stage are many more.
NUM_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
# Heartbeats, polls and watches have a task each while they run: the most of so many looks is what is usual.
NUM_LOOKS, LOOK_PAUSE_S = 20, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a process holds while nothing runs."""

    num_tasks: int
    # What descriptors lead to, and the names of threads.
    files: tuple[str, ...]
    threads: tuple[str, ...]
    kv_usage: float = 0.0

    def kept_from(self, before: Holdings) -> bool:
        """True when more is held than before. Threads of pools are made when they are first needed, a few in all."""
        grown = (
            self.num_tasks > before.num_tasks,
            len(self.files) > len(before.files),
            len(self.threads) > len(before.threads) + NUM_POOL_THREADS,
            self.kv_usage > before.kv_usage,
        )
        return any(grown)


@dataclass(slots=True, kw_only=True)
class Departures:
    """What happened to clients that left at one stage: the time until nothing of them was left in the pool."""

    stage: str
    freed_s: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        """The 99th percentile, rounded up to a value that occurred."""
        times = sorted(self.freed_s)
        return times[min(len(times) - 1, int(0.99 * len(times)))]


def metrics(process: Process) -> dict[str, float]:
    """Values of a process's /metrics, by name, summed over labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{process.metrics_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def holdings(process: Process, database_port: int) -> Holdings:
    """Tell what a process holds now.

    Left out are connections to the database, whose pool grows when it is needed, and the one that this very look came
    through: the process closes it a moment after it has answered.
    """
    told = metrics(process)
    proc = Path(f"/proc/{process.pid}")
    metrics_port = int(process.metrics_address.rpartition(":")[2])
    passing = {
        one.fd
        for one in psutil.Process(process.pid).net_connections()
        if one.raddr and (one.raddr.port == database_port or one.laddr.port == metrics_port)
    }
    # After the connections: one of them may be closed by now, none can be new.
    files = [_told(entry.readlink) for entry in (proc / "fd").iterdir() if int(entry.name) not in passing]
    threads = [_told((entry / "comm").read_text) for entry in (proc / "task").iterdir()]
    return Holdings(
        num_tasks=int(told["octavo_event_loop_tasks"]),
        files=tuple(sorted(filter(None, files))),
        threads=tuple(sorted(filter(None, threads))),
        kv_usage=told.get("octavo_kv_cache_usage_perc", 0.0),
    )


def _told(ask: Callable[[], object]) -> str:
    """What the kernel says of one of them; nothing if it has just ended."""
    try:
        return str(ask()).strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def usual_holdings(process: Process, database_port: int) -> Holdings:
    """The most that a process holds in a few seconds while nothing runs."""
    looks: list[Holdings] = []
    for _ in range(NUM_LOOKS):
        looks.append(holdings(process, database_port))
        time.sleep(LOOK_PAUSE_S)
    return Holdings(
        num_tasks=max(look.num_tasks for look in looks),
        files=max((look.files for look in looks), key=len),
        threads=max((look.threads for look in looks), key=len),
        kv_usage=max(look.kv_usage for look in looks),
    )


def kept_holdings(process: Process, database_port: int, before: Holdings) -> Holdings:
    """What a process holds beyond what was usual, as long as it does: what is kept is there at every look."""
    for _ in range(NUM_LOOKS):
        found = holdings(process, database_port)
        if not found.kept_from(before):
            break
        time.sleep(LOOK_PAUSE_S)
    return found


class Leavers:
    """Clients that disconnect without a word: their requests say that a disconnect cancels."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        (self._worker,) = cluster.processes("worker")
        self._number = 0

    async def run(self, stage: str, count: int) -> Departures:
        """Let that many clients leave at one stage, one after another."""
        departures = Departures(stage=stage)
        async with grpc.aio.insecure_channel(self._cluster.addresses[0]) as channel:
            # What fills the worker stays while the others come and go.
            num_fillers = {"queued": NUM_JOBS, "waiting": NUM_ROWS}.get(stage, 0)
            fillers: list[grpc.aio.UnaryStreamCall] = []
            for number in range(num_fillers):
                fillers.append(self._open(channel, "A long story.", max_tokens=5000))
                if number < NUM_ROWS:
                    await self._first_tokens(fillers[-1])
            before = await self._pool(lambda pool: pool[1] >= num_fillers - NUM_ROWS)
            for _ in range(count):
                await self._leave_once(channel, stage, before, departures)
            for filler in fillers:
                filler.cancel()
            await self._pool(lambda pool: pool == (0, 0, 0))
        return departures

    async def _leave_once(self, channel: grpc.aio.Channel, stage: str, before: Sequence[int], into: Departures) -> None:
        self._number += 1
        words = 1500 if stage == "mid_chunk" else 20
        call = self._open(channel, f"Story number {self._number}. " + "fold the sheet " * words, max_tokens=500)
        accepted = await call.read()
        job_id = accepted.event.accepted.job_id
        if stage == "one_token":
            await self._first_tokens(call)
        elif stage == "mid_chunk":
            await self._pool(lambda pool: pool[0] > 0)
        elif stage == "waiting":
            await self._pool(lambda pool: pool[1] > 0)
        call.cancel()
        left_s = time.monotonic()
        if stage in ("queued", "waiting"):
            # The rows of the fillers go on growing in the pool: here only the row and the engine's queue tell.
            await self._ended(job_id)
            await self._pool(lambda pool: pool[1] <= before[1])
        else:
            await self._pool(lambda pool: pool == (0, 0, 0))
        into.freed_s.append(time.monotonic() - left_s)
        state = await self._ended(job_id)
        if state != "cancelled":
            into.troubles.append(f"job {job_id} that was left when {stage} is {state}")

    def _open(self, channel: grpc.aio.Channel, prompt: str, *, max_tokens: int) -> grpc.aio.UnaryStreamCall:
        generation = gateway_pb2.Generation(prompt=prompt)
        generation.on_disconnect = gateway_pb2.ON_DISCONNECT_CANCEL
        generation.sampling.max_tokens = max_tokens
        generation.sampling.temperature = 0.0
        generation.sampling.ignore_eos = True
        key = (("authorization", f"Bearer {self._cluster.key()}"),)
        stub = gateway_pb2_grpc.GenerationServiceStub(channel)
        return stub.Generate(gateway_pb2.GenerateRequest(generation=generation), metadata=key)

    @staticmethod
    async def _first_tokens(call: grpc.aio.UnaryStreamCall) -> None:
        while not (await call.read()).event.tokens.token_ids:
            pass

    async def _pool(self, wanted, timeout_s: float = 60.0) -> tuple[int, int, int]:
        """Wait until (running, waiting, used blocks in parts per million) of the worker are as wanted."""
        end_s = time.monotonic() + timeout_s
        while True:
            told = await asyncio.to_thread(metrics, self._worker)
            pool = (
                int(told["octavo_num_requests_running"]),
                int(told["octavo_num_requests_waiting"]),
                round(told["octavo_kv_cache_usage_perc"] * 1e6),
            )
            if wanted(pool):
                return pool
            assert time.monotonic() < end_s, pool
            await asyncio.sleep(POLL_S)

    async def _ended(self, job_id: str, timeout_s: float = 10.0) -> str:
        end_s = time.monotonic() + timeout_s
        while True:
            (row,) = await asyncio.to_thread(
                self._cluster.query, "select state, ended_at from jobs where id = %s::uuid", job_id
            )
            if row["ended_at"] is not None:
                return row["state"]
            assert time.monotonic() < end_s, f"job {job_id} is still {row['state']}"
            await asyncio.sleep(POLL_S)
