"""What planning reads of a model on this machine: its shape, and how its weights are stored. Loads nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from octavo_common.models.gguf_head import read_gguf_head
from octavo_common.plan.config import UnreadableModel, config_precision, config_shape, gguf_shape, stored_weights
from octavo_common.plan.formats import WeightBytes, WeightFormat, weight_format
from octavo_common.plan.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model to plan for, in the form in which it is stored."""

    shape: ModelShape
    stored: WeightFormat
    # Counted, where the files say; else they follow from the format.
    weights: WeightBytes | None = None


def read_model(path: Path, name: str = "") -> PlannedModel:
    """Read a Hugging Face directory, a GGUF file or a directory with one of those; raises UnreadableModel."""
    file = _file(path)
    name = name or (path.name if path.is_dir() else path.stem)
    if file.name != "config.json":
        head = read_gguf_head(file)
        shape = gguf_shape(head.metadata, head.dims, name=name, where=str(file))
        sizes = {tensor: size for tensor, size in head.num_bytes.items() if tensor != "rope_freqs.weight"}
        weights, stored = stored_weights(sizes, shape, list(head.kinds))
        return PlannedModel(shape=shape, stored=stored, weights=weights)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableModel(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise UnreadableModel(f"{file} is not a JSON object")
    shape = config_shape(values, name=name, where=str(file))
    return PlannedModel(shape=shape, stored=weight_format(config_precision(values)))


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    what = "there is no model at {}" if not path.is_dir() else "{} has neither config.json nor one GGUF file"
    raise UnreadableModel(what.format(path), hint="give a model's directory or a GGUF file")
