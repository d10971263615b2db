"""Recipes as YAML: strict, since a misspelt key that is ignored costs a night of wrong calibration."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from octavo_edge.recipe import BOS, PRESETS, STEPS, UNBUILT_STEPS, PrefixItem, Recipe, RecipeInvalid, Step, checked


def load(name_or_path: str) -> Recipe:
    """A preset by its name, or a file.

    Paths of texts become absolute: they are relative to the file.

    Raises:
        RecipeInvalid: There is no such preset or file, or what it says is wrong.
    """
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(
            f"recipe: {name_or_path!r} is neither a preset ({', '.join(PRESETS)}) nor a file that can be read",
            hint=_did_you_mean(name_or_path, list(PRESETS)) if path.suffix == "" else str(error),
            param="recipe",
        ) from error
    return from_yaml(text, name=path.stem, folder=path.resolve().parent)


def from_yaml(text: str, *, name: str = "recipe", folder: Path | None = None) -> Recipe:
    """The recipe of a text; ``name`` is taken if it has none.

    Raises:
        RecipeInvalid: It is no YAML, or a key or value is wrong; names the key and the nearest known one.
    """
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise RecipeInvalid(f"recipe: no YAML: {' '.join(str(error).split())}", param="recipe") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise RecipeInvalid("recipe: the file is no mapping of keys to values", param="recipe")
    recipe: Recipe = _read(Recipe, {"name": name, **values}, "")
    if folder is not None:
        recipe = _anchored(recipe, folder)
    return checked(recipe)


def to_yaml(recipe: Recipe) -> str:
    """The recipe as a text that ``from_yaml`` reads as the same one."""
    return yaml.safe_dump(to_plain(recipe), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Plain YAML in which a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                problem = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value as a type says: dataclasses from mappings, tuples from lists, enumerations from words."""
    if kind is Step:
        return _read_step(value, where)
    if kind == PrefixItem:
        return _read_prefix_item(value, where)
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    kind = next(option for option in options if option is not NoneType)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if get_origin(kind) is tuple:
        if get_args(kind)[0] == PrefixItem:
            value = _prefix_list(value, where)
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        item = get_args(kind)[0]
        return tuple(_read(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise _wrong(where, value, f"one of {', '.join(kind)}")
        return kind(value)
    return _read_scalar(kind, value, where)


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping of keys to values")
    hints = get_type_hints(kind)
    known = {entry.name: hints[entry.name] for entry in fields(kind)}
    for key in value:
        if key not in known:
            raise _unknown_key(key, list(known), where)
    for entry in fields(kind):
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in value:
            raise RecipeInvalid(f"recipe: {_at(where, entry.name)} is missing", param=_at(where, entry.name))
    return kind(**{key: _read(known[key], item, _at(where, key)) for key, item in value.items()})


def _read_step(value: Any, where: str) -> Step:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _wrong(where, value, f"a mapping with a name, one of {', '.join(STEPS)}")
    name = value["name"]
    if name in UNBUILT_STEPS:
        raise RecipeInvalid(
            f"recipe: {where}.name is {name}, which is not built here; there is {', '.join(STEPS)}",
            param=f"{where}.name",
        )
    if name not in STEPS:
        raise RecipeInvalid(
            f"recipe: {where}.name is {name!r}; there is {', '.join(STEPS)}",
            hint=_did_you_mean(name, list(STEPS)),
            param=f"{where}.name",
        )
    return _read_dataclass(STEPS[name], {key: item for key, item in value.items() if key != "name"}, where)


def _prefix_list(value: Any, where: str) -> Any:
    """The word for the model's first token alone is a list of it; none is none."""
    if value is None:
        return []
    if value != BOS and not isinstance(value, list):
        raise _wrong(where, value, f"{BOS}, or a list of ids and texts of tokens")
    return [value] if value == BOS else value


def _read_prefix_item(value: Any, where: str) -> PrefixItem:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong(where, value, "a token's id, or a text")
    return value


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        # YAML 1.1 reads 1e-3, without a point, as a word.
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise _wrong(where, value, "a number") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _wrong(where, value, "a number")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise _wrong(where, value, {int: "a whole number", str: "text"}[kind])
    return value


def to_plain(value: Any) -> Any:
    """A value as YAML has it."""
    if is_dataclass(value) and not isinstance(value, type):
        entries = {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value)}
        return {"name": value.name, **entries} if isinstance(value, Step) else entries
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _anchored(recipe: Recipe, folder: Path) -> Recipe:
    values: Mapping[str, Any] = to_plain(recipe)
    for part in ("calibration", "evaluation"):
        values[part]["texts"] = [str(folder / text) for text in values[part]["texts"]]
    return _read(Recipe, values, "")


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _wrong(where: str, value: Any, expected: str) -> RecipeInvalid:
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    return RecipeInvalid(f"recipe: {where or 'the file'} is {shown}; it is {expected}", param=where)


def _unknown_key(key: Any, known: list[str], where: str) -> RecipeInvalid:
    return RecipeInvalid(
        f"recipe: there is no key {_at(where, str(key))!r}",
        hint=_did_you_mean(str(key), known),
        param=_at(where, str(key)),
    )


def _did_you_mean(word: str, known: list[str]) -> str:
    """Always names one: also a far guess shows what kind of word is expected."""
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]
    return f"did you mean {nearest!r}? known are: {', '.join(known)}"
