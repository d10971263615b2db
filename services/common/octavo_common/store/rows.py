"""Rows of the tables as values of jobs/model.py."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Column, literal, null
from sqlalchemy.engine import RowMapping
from sqlalchemy.sql.elements import ColumnElement

from octavo_common.db.tables import jobs
from octavo_common.jobs.model import Job, JobState

# Columns that a Job has; loss_tokens is the rules' own.
_FIELDS = tuple(Job.__dataclass_fields__)
_HEAVY = {"payload": {}, "prompt_ids": [], "prefix_keys": [], "emitted_ids": []}

job_columns: list[Column[Any]] = [jobs.c[name] for name in _FIELDS]
# For text(): the same list, in the table alias j.
JOB_COLUMNS_OF_J = ", ".join(f"j.{name}" for name in _FIELDS)


def light_job_columns(kept: Collection[str] = ()) -> list[ColumnElement[Any]]:
    """The columns of a Job with empty values for the large ones, apart from those that are kept."""
    columns: list[ColumnElement[Any]] = []
    for name in _FIELDS:
        column = jobs.c[name]
        if name in _HEAVY and name not in kept:
            columns.append(literal(_HEAVY[name], column.type).label(name))
        elif name == "result":
            columns.append(null().label(name))
        else:
            columns.append(column)
    return columns


def to_job(row: RowMapping) -> Job:
    """A row that has all of a Job's columns (and perhaps more)."""
    values = {name: row[name] for name in _FIELDS}
    values["state"] = JobState(values["state"])
    for name in ("prompt_ids", "prefix_keys", "emitted_ids"):
        values[name] = tuple(values[name])
    return Job(**values)
