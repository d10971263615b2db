"""The page of a comparison: tables, what was promised, and on what machine. Knows no system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.ceilings import Ceilings
from benchmarks.result import Check, describe_machine

_ABOUT = {
    "offline": "## Engine against engine\n\nGenerated tokens a second, the prompt phase included: best / median round.",
    "online": "## Servers under Poisson arrivals\n\nEach server by itself, the same requests at the same times.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What came of one part."""

    figures: Mapping[str, float]
    checks: Sequence[Check]
    lines: Sequence[str]


def write_page(path: Path, parts: Mapping[str, Part], limits: Ceilings, settings: Mapping[str, object]) -> None:
    """Write the parts that there are."""
    machine = describe_machine()
    quick = "\n**A quick run: it shows that everything runs, its figures mean nothing.**\n" if settings["quick"] else ""
    lines = [
        "# Octavo and its peers",
        "",
        "Written by `python -m benchmarks.peers --page FILE`; [how it is measured](benchmarks.md#peers).",
        quick,
        f"{settings['model']}, {settings['num_prompt']} + {settings['num_new']} tokens, greedy, "
        f"{settings['threads']} threads on {machine['num_cores']} cores of an {machine['processor']}. "
        f"It reads {limits.read_gb_per_s:.1f} GB/s (BW, a buffer of 2 GiB) and makes {limits.int8_gops:.0f} G "
        "operations a second on bytes (int8, oneDNN); parts of these stand in brackets.",
    ]
    for name, part in parts.items():
        lines += ["", _ABOUT[name], "", *part.lines]
    checks = [check for part in parts.values() for check in part.checks]
    if checks:
        lines += ["", "## Promises", "", "| promise | found | holds |", "|---|---|---|"]
        for check in checks:
            wanted = f">= {check.at_least:g}" if check.at_least is not None else f"<= {check.at_most:g}"
            lines.append(f"| {check.name} {wanted} | {check.value:.2f} | {'yes' if check.holds else '**no**'} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
