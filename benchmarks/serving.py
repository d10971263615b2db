"""Measures a whole platform: what it adds to the engine, and what it takes when nobody asks for anything.

Usage: python -m benchmarks.serving [MODEL] [--only memory,idle,first_token,gap,prefix,two_workers] [--json FILE]

Starts a platform of its own in a temporary data directory. The engine that it is compared with runs in this process,
with as many threads, in turns with it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import footprint
from result import Check, Result, report

import octavo
from octavo_cli.supervisor.plan import thread_env, worker_threads
from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import fetch

PARTS = ("memory", "idle", "first_token", "gap", "prefix", "two_workers")
MIB = 1 << 20
SETTLE_S = 15.0
START_TIMEOUT_S = 300
# Requests in a row, after some that are not counted.
ROW, NUM_WARM = 8, 2
Part = tuple[dict[str, float], list[Check]]
Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform that runs."""

    data_dir: Path
    grpc: str
    http: str
    key: str


@contextmanager
def platform(model: Path, *words: str) -> Iterator[Platform]:
    """A platform on free ports, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        data_dir = Path(folder)
        # The database's user must be able to enter it.
        data_dir.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        ports = ("OCTAVO_GATEWAY_GRPC_PORT", "OCTAVO_GATEWAY_HTTP_PORT", "OCTAVO_CONSOLE_PORT")
        env = {**kept, "OCTAVO_DATA_DIR": folder, **dict.fromkeys(ports, "0")}
        command = [sys.executable, "-m", "octavo_cli"]
        start = ["up", "--detach", "--wait", f"--timeout={START_TIMEOUT_S}", f"--model={model}", *words]
        try:
            subprocess.run([*command, *start], env=env, check=True, stdout=sys.stderr)
            up = json.loads((data_dir / "run" / "up.json").read_text())
            gateway = next(service for service in up["services"] if service["role"] == "gateway")
            key = (data_dir / "secrets" / "user_key").read_text().strip()
            yield Platform(data_dir=data_dir, grpc=gateway["address"], http=gateway["http_address"], key=key)
        finally:
            subprocess.run([*command, "down"], env=env, check=False, stdout=sys.stderr)


class Bench:
    """What the parts share."""

    def __init__(self, model: Path, *, num_requests: int, idle_s: float) -> None:
        self.model = model
        self.num_requests = num_requests
        self.idle_s = idle_s
        self.num_threads = worker_threads(len(os.sched_getaffinity(0)), 1)
        # As the platform's worker has it, and before anything imports torch, which reads it then.
        os.environ.update(thread_env(self.num_threads))

    @cached_property
    def engine(self) -> Any:
        """The engine in this process."""
        from octavo_worker.plugins import build_engine
        from octavo_worker.runtime.build import EngineConfig

        return build_engine(EngineConfig(model_path=self.model, num_threads=self.num_threads))

    def prompts(self, count: int, num_tokens: int) -> list[Prompt]:
        """Different stretches of a real text."""
        from engine import make_prompts

        return make_prompts(self.engine, count=count, num_tokens=num_tokens)

    # --- parts

    def first_token(self, at: Platform) -> Part:
        """Time to the first token, one request at a time: through each rim, and from the engine alone.

        A few requests of each way in a row, in turns. The first ones of a row are not counted: they find the caches
        full of the other process's copy of the weights, which says nothing about the way.
        """
        from engine import Driver

        driver, client, web = Driver(self.engine), octavo.Client(at.grpc, api_key=at.key), _Web(at)
        ways: dict[str, Callable[[Prompt, str], float]] = {
            "engine": lambda prompt, salt: _engine_s(driver, prompt, salt),
            "grpc": lambda prompt, salt: _sdk_s(client, prompt, salt),
            "http": web.first_token_s,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        rows = -(-self.num_requests // ROW)
        prompts = iter(self.prompts(rows * (NUM_WARM + ROW), 64))
        for _ in range(rows):
            row = [next(prompts) for _ in range(NUM_WARM + ROW)]
            for name, way in ways.items():
                for turn, prompt in enumerate(row):
                    took = way(prompt, f"first-{name}")
                    if turn >= NUM_WARM:
                        taken[name].append(took)
                    # Commits and spans of the request before end first.
                    time.sleep(0.05)
        client.close()
        figures = {f"first_token_{name}_p50_s": statistics.median(times) for name, times in taken.items()}
        figures |= {f"first_token_{name}_min_s": min(times) for name, times in taken.items()}
        base = figures["first_token_engine_p50_s"]
        return figures, [
            Check(
                name=f"first token by {rim} - by the engine alone, p50, ms",
                value=1e3 * (figures[f"first_token_{rim}_p50_s"] - base),
                at_most=15.0,
            )
            for rim in ("grpc", "http")
        ]

    def gap(self, at: Platform) -> Part:
        """The 95th percentile of the time between tokens of 8 streams, alone and while a prompt of 2,000 comes."""
        normal, beside, took = asyncio.run(_gaps(at, self.prompts(8, 128), self.prompts(1, 2000)[0]))
        figures = {
            "gap_p95_s": _p95(normal),
            "gap_p95_beside_prompt_s": _p95(beside),
            "long_prompt_s": took,
            "num_gaps": len(normal),
            "num_gaps_beside_prompt": len(beside),
        }
        ratio = figures["gap_p95_beside_prompt_s"] / figures["gap_p95_s"]
        return figures, [Check(name="gap beside a prompt / normal gap", value=ratio, at_most=3.0)]

    def prefix(self, at: Platform) -> Part:
        """How much sooner the first token of a prompt comes when its 1,000 tokens were seen before."""
        client = octavo.Client(at.grpc, api_key=at.key)
        cold, warm = [], []
        for turn, prompt in enumerate(self.prompts(4, 1000)):
            cold.append(_sdk_s(client, prompt, f"prefix-{turn}"))
            warm.append(_sdk_s(client, (*prompt, 5, 6, 7), f"prefix-{turn}"))
        client.close()
        figures = {"prefix_cold_p50_s": statistics.median(cold), "prefix_warm_p50_s": statistics.median(warm)}
        ratio = figures["prefix_cold_p50_s"] / figures["prefix_warm_p50_s"]
        return figures, [Check(name="cold / repeated prefix, first token", value=ratio, at_least=5.0)]

    def idle(self, at: Platform) -> Part:
        """CPU time of all processes together while nobody asks for anything."""
        time.sleep(SETTLE_S)
        shares = footprint.cpu(at.data_dir, self.idle_s)
        figures = {f"idle_{share.name}_cpu_percent": share.cpu_percent for share in shares}
        total = sum(figures.values())
        figures["idle_wake_penalty"] = footprint.wake_penalty()
        return figures, [Check(name="CPU of the idle platform, % of a core", value=total, at_most=3.0)]

    def memory(self, at: Platform, name: str = "memory") -> Part:
        """Proportional set size of all processes, before the first request."""
        shares = footprint.memory(at.data_dir)
        figures = {f"{name}_{share.name}_pss_mib": share.pss_bytes / MIB for share in shares}
        return figures, [Check(name="memory of all processes, MiB", value=sum(figures.values()), at_most=2048.0)]

    def two_workers(self) -> Part:
        """The memory of a platform with two workers: told, not promised."""
        with platform(self.model, "--workers=2") as at:
            figures, checks = self.memory(at, "two_workers")
        return {**figures, "two_workers_pss_mib": checks[0].value}, []


class _Web:
    """The OpenAI API over one connection."""

    def __init__(self, at: Platform) -> None:
        self._connection = http.client.HTTPConnection(at.http, timeout=120)
        self._headers = {"authorization": f"Bearer {at.key}", "content-type": "application/json"}

    def first_token_s(self, prompt: Prompt, salt: str) -> float:
        """Seconds until the first event of a streamed completion; reads it to its end."""
        body = {"prompt": list(prompt), "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True}
        started = time.perf_counter()
        self._connection.request("POST", "/v1/completions", json.dumps({**body, "cache_salt": salt}), self._headers)
        answer = self._connection.getresponse()
        first = None
        while line := answer.readline():
            if first is None and line.startswith(b"data: {"):
                assert json.loads(line[6:])["choices"], line
                first = time.perf_counter() - started
        assert answer.status == 200 and first is not None, answer.status
        return first


def _engine_s(driver: Any, prompt: Prompt, salt: str) -> float:
    started = time.perf_counter()
    name = driver.add(prompt, 2, salt)
    while not driver.times[name]:
        driver.step()
    first = driver.times[name][0] - started
    driver.drain()
    return first


def _sdk_s(client: octavo.Client, prompt: Prompt, salt: str) -> float:
    started = time.perf_counter()
    first = None
    stream = client.generate(token_ids=prompt, max_tokens=2, temperature=0, ignore_eos=True, cache_salt=salt)
    for chunk in stream:
        if first is None and chunk.token_ids:
            first = time.perf_counter() - started
    assert first is not None
    return first


async def _gaps(at: Platform, prompts: Sequence[Prompt], long: Prompt) -> tuple[list[float], list[float], float]:
    """Gaps of some streams for a while, gaps while a long prompt is read, and how long that took."""
    arrivals: list[list[float]] = [[] for _ in prompts]
    grew = asyncio.Event()

    async def follow(stream: Any, times: list[float]) -> None:
        async for _ in stream:
            times.append(time.perf_counter())
            grew.set()

    async def grown_to(count: int) -> None:
        while any(len(times) < count for times in arrivals):
            grew.clear()
            await grew.wait()

    async with octavo.AsyncClient(at.grpc, api_key=at.key) as client:
        same = {"temperature": 0, "ignore_eos": True, "cache_salt": "gap"}
        streams = [client.generate(token_ids=prompt, max_tokens=2000, **same) for prompt in prompts]
        tasks = [asyncio.create_task(follow(*pair)) for pair in zip(streams, arrivals, strict=True)]
        await grown_to(40)
        first = time.perf_counter()
        await grown_to(120)
        middle = time.perf_counter()
        async for _ in client.generate(token_ids=long, max_tokens=1, **same):
            break
        last = time.perf_counter()
        await asyncio.gather(*(stream.cancel() for stream in streams))
        await asyncio.gather(*tasks, return_exceptions=True)
    return _between(arrivals, first, middle), _between(arrivals, middle, last), last - middle


def _between(arrivals: Sequence[Sequence[float]], first: float, last: float) -> list[float]:
    inside = [[t for t in times if first <= t <= last] for times in arrivals]
    return [b - a for times in inside for a, b in pairwise(times)]


def _p95(gaps: Sequence[float]) -> float:
    return statistics.quantiles(gaps, n=20)[-1]


def demo_model() -> Path:
    """The demo model; fetched once into the data directory of this clone."""
    return Path(fetch(DEFAULT_MODEL, data_dir=Path(__file__).resolve().parent.parent / ".octavo").path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--requests", type=int, default=24, help="measured requests of each way to the first token")
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = (args.model or demo_model()).resolve()
    bench = Bench(model, num_requests=args.requests, idle_s=args.idle_s)
    wanted = args.only.split(",")
    figures: dict[str, float] = {}
    checks: list[Check] = []

    def add(part: Part) -> None:
        figures.update(part[0])
        checks.extend(part[1])

    if set(wanted) - {"two_workers"}:
        with platform(model) as at:
            # In this order: the first two want a platform that has done nothing yet.
            for name in PARTS[:-1]:
                if name in wanted:
                    add(getattr(bench, name)(at))
    if "two_workers" in wanted:
        add(bench.two_workers())
    settings = {"model": model.name, "num_threads": bench.num_threads, "parts": args.only}
    return report(Result(benchmark="serving", settings=settings, figures=figures, checks=tuple(checks)), args.json)


if __name__ == "__main__":
    sys.exit(main())
