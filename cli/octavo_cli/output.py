"""How commands speak: data on stdout, everything else on stderr. Knows no commands."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

# Figures, progress and complaints.
err = Console(stderr=True, highlight=False, soft_wrap=True)


def show_json(value: Any) -> None:
    """Print a value as JSON; dataclasses and times are understood."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """Print rows under headings; a sentence on stderr when there are none."""
    if not rows:
        err.print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("id", "state"))
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    # A pipe gets whole lines, whatever the width of the terminal is believed to be.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=240)
    console.print(table)


def say(text: str) -> None:
    """Print a line for people on stderr."""
    err.print(text, markup=False)


class WrongUse(click.UsageError):
    """Something that cannot be asked for as things are; ``hint`` says what can be done."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def times(number: int) -> str:
    """How often: once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def complain(message: str, hint: str = "", code: str = "") -> None:
    """Print an error in one line, with its hint."""
    one_line = " ".join(message.split())
    err.print(f"error: {one_line}" + (f" [{code}]" if code else "") + (f" - {hint}" if hint else ""), markup=False)


def age(moment: datetime | None) -> str:
    """How long ago a moment was, for tables."""
    if moment is None:
        return ""
    seconds = max(0, int((datetime.now(tz=UTC) - moment).total_seconds()))  # noqa: TID251 - for display only
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
