"""The JSON format of all benchmarks: what ran, where, and figures with units in their names."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise: a ratio of two figures of the same run, and where it has to lie."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value lies where it has to."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one benchmark."""

    benchmark: str
    settings: Mapping[str, object]
    figures: Mapping[str, float]
    checks: tuple[Check, ...] = ()
    machine: Mapping[str, object] = field(default_factory=lambda: describe_machine())

    def to_json(self) -> str:
        """The result as indented JSON."""
        checks = [{**asdict(check), "holds": check.holds} for check in self.checks]
        return json.dumps({**asdict(self), "checks": checks}, indent=2)

    @property
    def holds(self) -> bool:
        """Whether all checks hold."""
        return all(check.holds for check in self.checks)


def commit() -> str:
    """The short name of the commit that is checked out, or "unknown"."""
    argv = ["git", "rev-parse", "--short", "HEAD"]
    told = subprocess.run(argv, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()
    return told or "unknown"


def describe_machine() -> dict[str, object]:
    """What figures depend on."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def report(result: Result, path: Path | None) -> int:
    """Print the result, write it where asked; the exit code is 0 when every check holds."""
    text = result.to_json()
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
    for check in result.checks:
        if not check.holds:
            print(f"does not hold: {check}", file=sys.stderr)
    return 0 if result.holds else 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
