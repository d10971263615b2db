"""What the processes of one platform take while nobody asks for anything: CPU time and memory. Linux only."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process, or one kind of processes."""

    name: str
    # Of one core.
    cpu_percent: float = 0.0
    # Proportional set size: a page that n processes share counts 1/n for each.
    pss_bytes: int = 0


def platform_processes(data_dir: Path) -> dict[int, str]:
    """Pid and name of every process of the platform in a data directory: supervisor, services, Postgres."""
    up = json.loads((data_dir / "run" / "up.json").read_text())
    names = {up["pid"]: "supervisor"} | {service["pid"]: service["role"] for service in up["services"]}
    roots = [up["pid"]]
    if up["embedded_database"]:
        roots.append(json.loads((data_dir / "pg.json").read_text())["pid"])
    found: dict[int, str] = {}
    for root in roots:
        parent = psutil.Process(root)
        for process in (parent, *parent.children(recursive=True)):
            found[process.pid] = names.get(process.pid) or _owner(process, names)
    return found


def _owner(process: psutil.Process, names: dict[int, str]) -> str:
    if process.name().startswith("postgres"):
        return "postgres"
    return next((names[parent.pid] for parent in process.parents() if parent.pid in names), process.name())


def memory(data_dir: Path) -> list[Share]:
    """Memory by kind of process, largest first."""
    sizes: dict[str, int] = {}
    for pid, name in platform_processes(data_dir).items():
        sizes[name] = sizes.get(name, 0) + _pss_bytes(pid)
    return sorted((Share(name=n, pss_bytes=b) for n, b in sizes.items()), key=lambda s: -s.pss_bytes)


def cpu(data_dir: Path, seconds: float) -> list[Share]:
    """CPU time by kind of process over some seconds, largest first. A process that ends meanwhile is left out."""
    processes = platform_processes(data_dir)
    before = {pid: _cpu_s(pid) for pid in processes}
    started = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - started
    spent: dict[str, float] = {}
    for pid, name in processes.items():
        try:
            spent[name] = spent.get(name, 0.0) + _cpu_s(pid) - before[pid]
        except FileNotFoundError:
            continue
    return sorted((Share(name=n, cpu_percent=100 * s / took) for n, s in spent.items()), key=lambda s: -s.cpu_percent)


def wake_penalty(num_wakes: int = 8) -> float:
    """How much more CPU time a little Python costs after a second of sleep than in a row; 1 on a machine of one's own.

    Tells what an idle platform's figures are worth: where other guests share the caches, nearly all of them is this.
    """

    def work_s() -> float:
        before = time.process_time()
        sum([i * i for i in range(20_000)])
        return time.process_time() - before

    in_a_row = statistics.median(work_s() for _ in range(50))
    after_sleep: list[float] = []
    for _ in range(num_wakes):
        time.sleep(1.0)
        after_sleep.append(work_s())
    return statistics.median(after_sleep) / in_a_row


def _cpu_s(pid: int) -> float:
    # The command's name may hold blanks and brackets; fields are counted after its last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # User and system time, and those of children that have ended.
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_S


def _pss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
