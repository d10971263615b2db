"""The artifact store: what is kept, what is collected, and who may use it meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import resource
from pathlib import Path

import pytest

from octavo_common.clock import SystemClock
from octavo_common.errors import Cancelled, InvalidArgument
from octavo_edge.__main__ import main
from octavo_edge.artifacts import joined_digest, source_model
from octavo_edge.deliver import deliver
from octavo_edge.locks import NamedLocks
from octavo_edge.store import ArtifactStore, StoreUnusable


class Ticking:
    """A clock that moves a second at every look."""

    def __init__(self):
        self._seconds = itertools.count(1_000_000)

    def monotonic(self):
        return float(next(self._seconds))

    time = monotonic

    async def sleep(self, seconds):
        raise AssertionError


class Disk:
    """What has been forced to the disk, and before which rename."""

    def __init__(self, monkeypatch):
        self._synced, self._at_rename = [], {}
        fsync, rename = os.fsync, Path.rename

        def noted_fsync(file):
            fsync(file)
            self._synced.append(os.fstat(file).st_ino)

        def noted_rename(path, target):
            self._at_rename[Path(target)] = len(self._synced)
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(Path, "rename", noted_rename)

    def had(self, folder):
        """Every file and directory of it before it got its name, and that name at the end."""
        before = self._synced[: self._at_rename[folder]]
        assert {path.stat().st_ino for path in (folder, *folder.rglob("*"))} <= set(before)
        assert folder.parent.stat().st_ino in self._synced[self._at_rename[folder] :]


def give_up():
    raise Cancelled("waited")


def put(store, word, size):
    digest = joined_digest(word)
    with store.writing(digest, give_up) as draft:
        (draft.files / "data").write_bytes(word.encode()[:1] * size)
        store.keep(draft, kind="Words", report={"word": word})
    with store.reading(digest, give_up) as entry:
        return entry


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store", Ticking())


def test_what_is_kept_is_found_with_its_report_and_size(store):
    entry = put(store, "folio", 1000)
    assert (entry.path / "data").read_bytes() == b"f" * 1000
    assert entry.report == {"word": "folio"}
    assert entry.kind == "Words"
    report_bytes = (entry.path.parent / "report.json").stat().st_size
    assert entry.size_bytes == 1000 + report_bytes
    assert [found.digest for found in store.entries()] == [entry.digest]


def test_an_artifact_cannot_be_changed_by_accident(store):
    entry = put(store, "folio", 10)
    assert (entry.path / "data").stat().st_mode & 0o222 == 0


def test_what_was_used_least_recently_goes_first(store):
    entries = [put(store, word, 1000) for word in ("folio", "quarto", "octavo")]
    with store.reading(entries[0].digest, give_up):
        pass
    removed = store.collect(2 * entries[0].size_bytes + 500)
    assert [entry.digest for entry in removed] == [entries[1].digest]
    assert {entry.digest for entry in store.entries()} == {entries[0].digest, entries[2].digest}


def test_what_is_in_use_is_not_collected(store, tmp_path):
    entry = put(store, "folio", 1000)
    with store.reading(entry.digest, give_up):
        assert ArtifactStore(tmp_path / "store", SystemClock()).collect(0) == []
        assert (entry.path / "data").exists()
    assert [removed.digest for removed in store.collect(0)] == [entry.digest]
    assert not entry.path.exists()


def test_what_is_damaged_and_nobody_asks_for_is_collected_when_the_store_is_opened(store, tmp_path, capsys):
    gone, used, kept = (put(store, word, 1000) for word in ("folio", "quarto", "octavo"))
    for entry in (gone, used):
        (entry.path / "data").unlink()
    (tmp_path / "store" / "objects" / "notes.txt").write_text("somebody's")
    with store.reading(kept.digest, give_up), NamedLocks(tmp_path / "store" / "locks").try_hold(used.digest):
        again = ArtifactStore(tmp_path / "store", Ticking())
    assert again.num_damaged == 1
    assert {path.name for path in (tmp_path / "store" / "objects").iterdir()} == {used.digest, kept.digest, "notes.txt"}
    assert main(["store", "--store", str(tmp_path / "store")]) == 0
    told = capsys.readouterr()
    assert "removed 1 artifacts that were damaged" in told.err
    assert told.out.split()[0] == kept.digest[:16] and len(told.out.splitlines()) == 1
    assert list((tmp_path / "store" / "drafts").iterdir()) == []


def test_a_manifest_without_a_digest_is_damage_and_made_again(store):
    entry = put(store, "folio", 1000)
    manifest = entry.path.parent / "manifest.json"
    told = json.loads(manifest.read_text())
    del told["files"]["files/data"]["sha256"]
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(told))
    with store.reading(entry.digest, give_up) as found:
        assert found is None
    with store.writing(entry.digest, give_up) as draft:
        assert draft is not None and draft.replaces
    assert not entry.path.exists()


def test_what_cannot_be_read_for_want_of_descriptors_is_not_damaged(store, tmp_path):
    entry = put(store, "folio", 1000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        most = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + 8, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        os.close(taken.pop())  # enough for a directory, or for a lock, and for nothing besides
        again = ArtifactStore(tmp_path / "store", Ticking())
        with pytest.raises(OSError, match="Too many open files"), again.reading(entry.digest, give_up):
            pass
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert again.num_damaged == 0
    with again.reading(entry.digest, give_up) as found:
        assert found is not None


def test_an_artifact_has_its_name_after_all_of_it_is_on_the_disk(store, tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    entry = put(store, "folio", 1000)
    disk.had(entry.path.parent)


def test_a_delivery_has_its_name_after_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    (tmp_path / "a.bin").write_bytes(b"x")
    disk = Disk(monkeypatch)
    deliver(tmp_path / "out", copies={"deep/a.bin": tmp_path / "a.bin"}, texts={"report.json": "{}"})
    disk.had(tmp_path / "out")


def test_readers_share_and_a_writer_waits_for_them(store):
    entry = put(store, "folio", 10)
    with store.reading(entry.digest, give_up), store.reading(entry.digest, give_up):
        with pytest.raises(Cancelled), store.writing(entry.digest, give_up):
            pass
        with store.reading(entry.digest, give_up) as again:
            assert again.digest == entry.digest


def test_what_is_there_is_not_written_again(store):
    entry = put(store, "folio", 10)
    with store.writing(entry.digest, give_up) as draft:
        assert draft is None


def test_a_link_out_of_the_artifact_is_a_fault(store, tmp_path):
    (tmp_path / "elsewhere").write_text("x")
    digest = joined_digest("linked")
    with pytest.raises(AssertionError), store.writing(digest, give_up) as draft:
        (draft.files / "link").symlink_to(tmp_path / "elsewhere")
        store.keep(draft, kind="Words", report={})
    assert store.entries() == []


def test_another_order_of_parts_is_another_name():
    assert (
        len({joined_digest("ab", "c"), joined_digest("a", "bc"), joined_digest("c", "ab"), joined_digest("abc")}) == 4
    )


def test_a_source_is_named_by_what_is_in_it(tmp_path):
    def make(name, **files):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {"config.json": "{}", "model.safetensors": "w", **files}.items():
            (folder / file).write_text(text)
        return source_model(folder).digest

    same = make("one")
    assert same == make("two", **{"README.md": "words that change nothing"})
    assert same != make("three", **{"model.safetensors": "v"})
    assert same != make("four", **{"tokenizer.json": "{}"})


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_no_checkpoint_is_told(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument) as caught:
        source_model(tmp_path / name)
    assert caught.value.param == "model"


def test_the_manifest_lists_the_sha256_of_every_file(store):
    entry = put(store, "folio", 10)
    listed = json.loads((entry.path.parent / "manifest.json").read_text())["files"]
    assert listed["files/data"] == {"bytes": 10, "sha256": hashlib.sha256(b"f" * 10).hexdigest()}
    assert set(listed) == {"files/data", "report.json"}


def test_a_store_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot be used"):
        ArtifactStore(tmp_path / "file", SystemClock())
