"""Reads a recipe for a build as it is sent: a preset's name, or a file with the texts that it names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo_cli.output import WrongUse


def recipe_parameters(recipe: str, texts: Sequence[str]) -> dict[str, Any]:
    """The parameters of a submission. ``texts`` are names that the recipe gives its texts, beside those found in it."""
    path = Path(recipe)
    if not path.is_file():
        if path.suffix in (".yaml", ".yml"):
            raise WrongUse(f"there is no recipe {recipe}")
        return {"recipe": recipe}
    text = _read(path)
    names = dict.fromkeys([*texts, *_named(text)])
    return {"recipe_yaml": text, "recipe_texts": {name: _read(path.parent / name) for name in names}}


def _named(text: str) -> list[str]:
    """The texts that a recipe names, where there is somebody who reads YAML; what is wrong with it the builder says."""
    if find_spec("yaml") is None:
        return []
    import yaml

    try:
        recipe = yaml.safe_load(text)
        parts = [recipe.get(part) or {} for part in ("calibration", "evaluation")]
        return [str(name) for part in parts for name in part.get("texts") or ()]
    except (yaml.YAMLError, AttributeError, TypeError):
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} cannot be read: {error}") from error
