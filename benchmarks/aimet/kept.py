"""Findings as files: a part that is run again leaves those of the others as they were."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.aimet.ours import Loss
from benchmarks.aimet.parts import Extra, Findings, Reading, Row
from benchmarks.result import commit


def keep(path: Path, found: Findings) -> None:
    """Write a part's findings, with the day and the commit that they are of."""
    found.origins = [f"{path.stem} on {datetime.now(UTC):%Y-%m-%d} at {commit()}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")


def kept(paths: list[Path]) -> Findings:
    """The findings of all files that there are, in their order."""
    whole = Findings()
    for path in paths:
        if path.exists():
            part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            whole.versions |= part["versions"]
            whole.origins += part["origins"]
            whole.rows += [_row(row) for row in part["rows"]]
            whole.extras += [Extra(**{**extra, "loss": Loss(**extra["loss"])}) for extra in part["extras"]]
            whole.ours_search_s += part["ours_search_s"]
            whole.aimet_search_s += part["aimet_search_s"]
    return whole


def _row(values: dict[str, Any]) -> Row:
    readings = tuple(Reading(**{**reading, "loss": Loss(**reading["loss"])}) for reading in values["readings"])
    losses = {side: Loss(**values[side]) for side in ("ours", "aimet")}
    return Row(**{**values, **losses, "readings": readings})
