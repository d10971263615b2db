"""A disk that fills up while a build is at its last stages, in earnest: one clear error, and nothing half-written."""

import shutil
from dataclasses import dataclass

import pytest
from checkpoints import make_llama

from octavo_common.clock import SystemClock
from octavo_common.space import NoSpace, free_bytes
from octavo_edge.app import BuildRequest, build
from octavo_edge.recipe_file import from_yaml
from octavo_edge.stage import Cancellation

STAGES = ["adapt", "optimise", "quantise", "export", "compile", "deploy"]
# Of what a build writes next there is a beginning.
LEFT_BYTES = 24_576


@dataclass
class Builds:
    """Builds of one small model, whose stages up to export are there."""

    folder: object
    disk: object

    def run(self, *, full_after="", targets=("onnxruntime",)):
        """The stages that ended, and whether they were there before; the disk is filled when one has ended."""
        self.ended = []

        def on_stage(run):
            self.ended.append((run.title, run.cached))
            if run.title == full_after:
                fill(self.disk)

        request = BuildRequest(
            model=self.folder / "tiny",
            targets=targets,
            recipe=from_yaml("calibration: {num_windows: 2}\nevaluation: {num_windows: 1}\n"),
            context_length=32,
            ars=(8, 1),
            out=self.disk / "out",
            store=self.disk / "store",
        )
        build(
            request,
            clock=SystemClock(),
            cancellation=Cancellation(),
            on_progress=lambda progress: None,
            on_stage=on_stage,
        )
        return self.ended


def fill(disk):
    """Leave next to nothing."""
    with (disk / "filler").open("wb") as filler:
        left = free_bytes(disk) - LEFT_BYTES
        while left > 0:
            left -= filler.write(b"\0" * min(left, 1 << 20))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    make_llama(folder / "tiny")
    Builds(folder, folder).run()
    for path in (folder / "store" / "objects").iterdir():
        if (path / "files" / "metadata.json").exists() or (path / "files" / "compiled.json").exists():
            shutil.rmtree(path)
    assert len(list((folder / "store" / "objects").iterdir())) == 4
    return folder


@pytest.fixture
def builds(shared, small_disk):
    # As much as the estimate wants; what is not written takes no memory.
    disk = small_disk("400m")
    shutil.copytree(shared / "store", disk / "store")
    return Builds(shared, disk)


@pytest.mark.parametrize("number", [4, 5, 6], ids=["compile", "deploy", "delivery"])
def test_a_full_disk_in_a_late_stage_is_named_and_the_build_goes_on_there_when_there_is_room(builds, number):
    titles = [*STAGES[:4], "compile for onnxruntime", "deploy for onnxruntime"]
    with pytest.raises(NoSpace, match=r"no space left on the device of .*: 0 MB free") as caught:
        builds.run(full_after=titles[number - 1])
    assert ("--out" if number == 6 else "--store") in caught.value.hint
    assert builds.ended == [(title, title in STAGES) for title in titles[:number]]
    # Nothing under a final name, nothing left of what was begun: not of the stage, and not of the delivery.
    assert {path.name for path in builds.disk.iterdir()} == {"store", "filler"}
    assert len(list((builds.disk / "store" / "objects").iterdir())) == number
    assert list((builds.disk / "store" / "drafts").iterdir()) == []
    (builds.disk / "filler").unlink()
    assert builds.run() == [(title, index < number) for index, title in enumerate(titles)]
    assert (builds.disk / "out" / "metadata.json").is_file()


def test_no_other_target_is_begun_on_a_full_disk(builds):
    with pytest.raises(NoSpace):
        builds.run(full_after="export", targets=("gguf", "onnxruntime"))
    assert [title for title, _ in builds.ended] == STAGES[:4]
    assert not (builds.disk / "out").exists()
