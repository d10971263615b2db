"""Puts what was built where the user wants it: a directory that appears whole, or stays as it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from octavo_common.errors import InvalidArgument
from octavo_edge.report import FORMAT
from octavo_edge.store import to_disk, told_when_full

REPORT = "report.json"


def check_place(out: Path) -> None:
    """Say early whether a build may be put there: a new directory, an empty one, or one with a build before.

    Raises:
        InvalidArgument: There is something else, or nothing may be written there.
    """
    if out.is_mount():
        raise InvalidArgument(
            f"{out} is where a disk is mounted, which cannot be replaced as a whole",
            hint="give a directory inside it with --out",
            param="out",
        )
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InvalidArgument(f"{out} cannot be made: nothing may be written in {above}", param="out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = json.loads((out / REPORT).read_text())["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise InvalidArgument(
            f"{out} holds something else than a build",
            hint="give a new or empty directory with --out",
            param="out",
        )


def deliver(out: Path, *, copies: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Fill ``out`` with copies of files and with texts, by their names in it; a build before is replaced."""
    check_place(out)
    out = out.absolute()
    partial, before = (out.with_name(f".{out.name}.{os.getpid()}.{word}") for word in ("partial", "before"))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with told_when_full(out, "the build", option="--out"):
            partial.mkdir(parents=True)
            for name, source in copies.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, partial / name)  # its mode is not copied: files of the store are read-only
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            for path in (*partial.rglob("*"), partial):
                to_disk(path)
            _swap(partial, out, before)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, out: Path, before: Path) -> None:
    """Give the new directory its name; the old one comes back if that cannot be."""
    if out.exists():
        out.rename(before)
    try:
        partial.rename(out)
    except OSError:
        if before.exists():
            before.rename(out)
        raise
    to_disk(out.parent)
    shutil.rmtree(before, ignore_errors=True)


def retract(out: Path) -> None:
    """Remove a delivery; what is none stays."""
    try:
        check_place(out)
    except InvalidArgument:
        return
    shutil.rmtree(out, ignore_errors=True)


def tree(folder: Path, prefix: str = "") -> dict[str, Path]:
    """All files below a folder, by their names relative to it."""
    return {prefix + path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
