"""What planning needs to know of a served model, for its card. Reads the head of its files, no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo_common.models.shapes import read_model
from octavo_common.plan.config import UnreadableModel


def planned_shape(path: Path, name: str) -> dict[str, Any] | None:
    """The model's shape as JSON; None for models that are not planned: they are served all the same."""
    try:
        return read_model(path, name).shape.to_json()
    except UnreadableModel:
        return None
