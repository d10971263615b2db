"""Rows of the tables as values of jobs/model.py."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ARRAY, Column, Text, literal, null
from sqlalchemy.engine import RowMapping
from sqlalchemy.sql.elements import ColumnElement

from octavo_common.db.tables import jobs
from octavo_common.jobs.builds import LARGE_FIELDS
from octavo_common.jobs.model import Job, JobState

# Columns that a Job has; loss_tokens is the rules' own.
_FIELDS = tuple(Job.__dataclass_fields__)
_LARGE = literal(list(LARGE_FIELDS), ARRAY(Text))
_HEAVY = {"payload": {}, "prompt_ids": [], "prefix_keys": [], "emitted_ids": []}

job_columns: list[Column[Any]] = [jobs.c[name] for name in _FIELDS]
# For text(): the same list, in the table alias j.
JOB_COLUMNS_OF_J = ", ".join(f"j.{name}" for name in _FIELDS)


def light_job_columns(*, with_payload: bool = False) -> list[ColumnElement[Any]]:
    """The columns of a Job with empty values for the large ones; the payload, if it is kept, without its large fields.

    Those are left out by the database: they never reach this process.
    """
    columns: list[ColumnElement[Any]] = []
    for name in _FIELDS:
        column = jobs.c[name]
        if name == "payload" and with_payload:
            columns.append(column.op("-", return_type=column.type)(_LARGE).label(name))
        elif name in _HEAVY:
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
