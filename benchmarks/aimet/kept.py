"""Findings as files: a part that is run again leaves those of the others as they were."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.aimet.ours import Loss
from benchmarks.aimet.parts import Findings, Origin, Reading, Row, Seconds


def keep(path: Path, found: Findings) -> None:
    """Write a part's findings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")


def kept(paths: list[Path]) -> Findings:
    """The findings of all files that there are, in their order."""
    whole = Findings()
    for path in paths:
        if path.exists():
            part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            whole.versions |= part["versions"]
            whole.origins += [Origin(**origin) for origin in part["origins"]]
            whole.rows += [_row(row) for row in part["rows"]]
            whole.ours_search += [Seconds(**seconds) for seconds in part["ours_search"]]
            whole.aimet_search += [Seconds(**seconds) for seconds in part["aimet_search"]]
    return whole


def _row(values: dict[str, Any]) -> Row:
    readings = tuple(Reading(**reading) for reading in values["readings"])
    losses = {side: _loss(values[side]) for side in ("ours", "aimet")}
    return Row(**{**values, **losses, "readings": readings})


def _loss(values: dict[str, Any]) -> Loss:
    return Loss(**{**values, "nll_nats": tuple(values["nll_nats"])})
