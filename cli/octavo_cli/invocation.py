"""How the user calls this command again: a line that works as it is printed, in the folder where it is read."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from octavo_cli import settings


def line(data_dir: Path, *words: str) -> str:
    """The command with these words, for the platform of ``data_dir``."""
    chosen = [] if data_dir == settings.default_data_dir() else ["--data-dir", str(data_dir)]
    return shlex.join([*program(), *chosen, *words])


def program() -> list[str]:
    """How the command is called: by its name if that is found, else by its path, else as a module."""
    beside = Path(sys.executable).with_name("octavo")
    if not beside.is_file():
        return [sys.executable, "-m", "octavo_cli"]
    found = shutil.which("octavo")
    if found is not None and Path(found).samefile(beside):
        return ["octavo"]
    here = Path.cwd()
    if beside.is_relative_to(here):
        short = str(beside.relative_to(here))
        return [short if "/" in short else f"./{short}"]
    return [str(beside)]
