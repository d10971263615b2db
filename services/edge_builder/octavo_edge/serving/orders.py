"""What is asked of the service, checked without a model, as a command line of the builder. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from octavo_common.errors import InvalidArgument, NotFound
from octavo_common.jobs.builds import BuildSpec
from octavo_common.models.catalog import CATALOG
from octavo_edge.app import TARGETS, check_targets
from octavo_edge.arguments import parsed_build, passed_on
from octavo_edge.recipe import PRESETS, Recipe
from octavo_edge.recipe_file import from_yaml
from octavo_edge.serving.settings import ModelPlaces
from octavo_edge.target import options_by_target

RECIPE_FILE = "recipe.yaml"
# File systems take no longer one.
_MAX_NAME_BYTES = 255


class Folders(NamedTuple):
    """Where a build finds models that have a name, keeps artifacts, and puts what it has made."""

    data_dir: Path
    store: Path
    out: Path


def check(spec: BuildSpec, places: ModelPlaces) -> None:
    """Refuse what can be seen to be wrong without a model; ``places`` are where models may lie.

    Raises:
        OctavoError: Names the part of the order that is wrong.
    """
    for name in spec.targets:
        if name not in TARGETS:
            raise NotFound(f"there is no target {name!r}", hint=f"targets are: {', '.join(TARGETS)}", param="targets")
    options = options_by_target(spec.targets, _pairs(spec))
    check_targets(spec.targets, options, _checked_recipe(spec))
    _check_model(spec.model, places)
    parsed_build(command_line(spec, recipe=RECIPE_FILE, folders=Folders(Path(), Path(), Path())))


def command_line(spec: BuildSpec, *, recipe: str, folders: Folders) -> list[str]:
    """The arguments of ``build``; ``recipe`` is the file of a recipe that has no preset's name.

    Raises:
        InvalidArgument: An option that cannot be asked for.
    """
    line = [
        *("--target", ",".join(spec.targets), "--recipe", spec.recipe or recipe),
        *("--context-length", str(spec.context_length), "--ar", ",".join(map(str, spec.ars))),
        *("--data-dir", str(folders.data_dir), "--store", str(folders.store), "--out", str(folders.out)),
        *("--progress", "json", "--attended"),
    ]
    known = passed_on()
    for name, value in spec.options.items():
        if name not in known:
            raise InvalidArgument(
                f"there is no option {name!r}", hint=f"options are: {', '.join(sorted(known))}", param="options"
            )
        if known[name]:
            # One word, so that a value with a dash in front is none of the options.
            line.append(f"--{name}={value}")
        elif value == "true":
            line.append(f"--{name}")
        elif value != "false":
            raise InvalidArgument(f"the option {name!r} is true or false, not {value!r}", param="options")
    line += [f"--target-option={pair}" for pair in _pairs(spec)]
    # Whatever the model's name begins with, it is no option.
    return [*line, "--", spec.model]


def _pairs(spec: BuildSpec) -> list[str]:
    return [f"{key}={value}" for key, value in spec.target_options.items()]


def _checked_recipe(spec: BuildSpec) -> Recipe:
    if spec.recipe and spec.recipe not in PRESETS:
        raise NotFound(
            f"there is no recipe {spec.recipe!r}",
            hint=f"there are {', '.join(PRESETS)}; others are sent as a text",
            param="recipe",
        )
    recipe = PRESETS[spec.recipe] if spec.recipe else from_yaml(spec.recipe_yaml)
    if not spec.recipe:
        for name in texts_of(recipe):
            if name not in spec.recipe_texts:
                raise InvalidArgument(
                    f"the recipe names the text {name!r}, which was not sent with it",
                    hint="texts are sent beside the recipe, under the names that it gives them",
                    param="recipe_texts",
                )
    folders = {folder for name in spec.recipe_texts for folder in Path(name).parents}
    for name in spec.recipe_texts:
        path = Path(name)
        # By what the path comes to: "./recipe.yaml" would take the place of the recipe that was checked.
        taken = path.parts[:1] == (RECIPE_FILE,)
        no_file = not path.name or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES or path in folders
        if path.is_absolute() or ".." in path.parts or taken or no_file:
            raise InvalidArgument(
                f"{name!r} is no name of a text",
                hint=f"a relative path without .., of at most {_MAX_NAME_BYTES} bytes",
                param="recipe_texts",
            )
    return recipe


def texts_of(recipe: Recipe) -> list[str]:
    """The files that a recipe names."""
    return [*recipe.calibration.texts, *recipe.evaluation.texts]


def _check_model(model: str, places: ModelPlaces) -> None:
    """A path outside of where models may lie is treated as one that does not exist."""
    if not model or "\0" in model:
        raise InvalidArgument("no model is named", param="model")
    try:
        allowed = model in CATALOG or _may_be_read(Path(model), model, places)
    except (OSError, RuntimeError):
        # Too long, a folder that may not be looked into, or links in a circle.
        allowed = False
    if not allowed:
        raise NotFound(
            f"there is no model at {model} on the edge builder's host",
            hint=f"a path there, or one of {', '.join(sorted(CATALOG))}",
            param="model",
        )


def _may_be_read(path: Path, model: str, places: ModelPlaces) -> bool:
    if not path.exists():
        # A name may be one of the data directory's models.
        return path.name == model
    real = path.resolve()
    if any(real.is_relative_to(closed) for closed in places.closed):
        return False
    return not places.roots or any(real.is_relative_to(root) for root in places.roots)
