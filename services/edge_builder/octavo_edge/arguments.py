"""The command line of the edge builder, as a table of arguments. Runs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from octavo_common.errors import InvalidArgument
from octavo_edge.app import TARGETS
from octavo_edge.recipe import PRESETS

# What a service says itself; all other options of `build` are the users' to give.
_OF_THE_SERVICE = frozenset(
    {
        *("--help", "--target", "--target-option", "--recipe", "--context-length", "--ar"),
        *("--out", "--store", "--data-dir", "--progress", "--attended"),
    }
)


def parser() -> argparse.ArgumentParser:
    """All commands; the one that was given is in ``command``."""
    whole = argparse.ArgumentParser(prog="octavo-edge", description="Builds models for devices.")
    whole.add_argument("--debug", action="store_true", help="show where a fault of the builder is")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", dest="command")
    commands.add_parser("build", parents=[build_options()], help="build a model for a target")
    store = commands.add_parser("store", parents=[_shared()], help="list the artifacts that are kept")
    store.add_argument("--keep-gb", type=float, metavar="GB", help="remove the least recently used beyond that")
    targets = commands.add_parser("targets", help="list the targets, and how far each comes here")
    targets.add_argument("--json", action="store_true", help="for programs: what each target lacks")
    commands.add_parser("serve", help="take builds from the job table; settings are OCTAVO_EDGE_* variables")
    return whole


def build_options() -> argparse.ArgumentParser:
    """The arguments of ``build``. What is added here can be asked of the service, too."""
    make = argparse.ArgumentParser(add_help=False, parents=[_shared()])
    make.add_argument("model", help="a Hugging Face directory, a .gguf file, or the name of a model that is known")
    make.add_argument(
        "--target", type=names, required=True, metavar="T,T", help=f"one or more of: {', '.join(TARGETS)}"
    )
    make.add_argument(
        "--target-option",
        action="append",
        default=[],
        metavar="[T.]KEY=VALUE",
        help="for the target's tool-chain; with several targets T.KEY says for which. May be given more than once",
    )
    make.add_argument("--recipe", default="w8a16", help=f"a YAML file, or one of: {', '.join(PRESETS)}")
    make.add_argument("--context-length", type=int, default=512, metavar="TOKENS")
    make.add_argument("--ar", type=numbers, default=(128, 1), help="new tokens of each graph: 128,1", metavar="N,N")
    make.add_argument("--attention", choices=("mha", "sha"), default="mha", help="heads together, or each by itself")
    make.add_argument("--parts", type=int, default=1, metavar="N", help="pieces that the layers are cut into")
    make.add_argument(
        "--passes", type=names, metavar="NAME,NAME", help="rewrites of the graphs; all usual ones if not given"
    )
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the build goes")
    make.add_argument("--data-dir", type=Path, default=Path(".octavo"), help="where models that are known by name lie")
    make.add_argument("--progress", choices=("words", "json"), default="words", help="for people, or for programs")
    make.add_argument(
        "--attended", action="store_true", help="end at once, with all children, when standard input is closed"
    )
    return make


class _Strict(argparse.ArgumentParser):
    """Raises what argparse would print before it ends the process."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(message, param="options")


def parsed_build(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments of ``build``.

    Raises:
        InvalidArgument: There is an unknown one, or a value that is none.
    """
    return _Strict(prog="octavo-edge build", add_help=False, allow_abbrev=False, parents=[build_options()]).parse_args(
        list(arguments)
    )


def passed_on() -> dict[str, bool]:
    """The options that users may give to a service, without dashes; True for those that take a value."""
    found: dict[str, bool] = {}
    for action in build_options()._actions:
        for name in action.option_strings:
            if name not in _OF_THE_SERVICE:
                found[name.removeprefix("--")] = action.nargs != 0
    return found


def names(text: str) -> tuple[str, ...]:
    """Words with commas between them, each once."""
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, largest first."""
    try:
        return tuple(sorted((int(part) for part in text.split(",")), reverse=True))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 128,1") from None


def _shared() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--store", type=Path, default=Path(".octavo/edge"), help="where artifacts are kept")
    return shared
