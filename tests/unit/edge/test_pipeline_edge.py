"""The pipeline: nothing is made twice, whatever ends a build leaves whole artifacts only, and types keep the order."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.edge_stages import Lengths, Total, Words, World, counting

from octavo_common.errors import Cancelled
from octavo_common.space import NoSpace
from octavo_edge.fingerprint import builder_fingerprint
from octavo_edge.pipeline import GateFailed
from octavo_edge.stage import Gate

ROOT = Path(__file__).parents[3]
TOTAL = len("thequickbrownfox")


def drafts(world: World) -> list[str]:
    return sorted(path.name for path in (world.folder / "store" / "drafts").iterdir())


def test_a_second_build_makes_nothing(tmp_path):
    words, lengths, total = Words(), Lengths(), Total()
    world = World(tmp_path)
    assert [world.run(counting(words, lengths, total)) for _ in range(2)] == [TOTAL, TOTAL]
    assert (words.runs, lengths.runs, total.runs) == (1, 1, 1)
    assert [run.cached for run in world.runs] == [False] * 3 + [True] * 3
    assert world.runs[0].report == world.runs[3].report
    assert drafts(world) == []
    assert list((tmp_path / "store" / "locks").iterdir()) == []


def test_another_setting_of_a_stage_makes_it_and_those_behind_it_anew(tmp_path):
    world = World(tmp_path)
    world.run(counting())
    world.run(counting(lengths=Lengths(cache_key="2")))
    assert [run.cached for run in world.runs[3:]] == [True, False, False]


def test_another_builder_makes_all_anew(tmp_path):
    World(tmp_path).run(counting())
    world = World(tmp_path, builder="2")
    assert world.run(counting()) == TOTAL
    assert [run.cached for run in world.runs] == [False] * 3


def test_a_builder_is_another_one_as_soon_as_its_code_is(tmp_path):
    (tmp_path / "part").mkdir()
    code = tmp_path / "part" / "code.py"
    code.write_text("SCALE = 1\n")
    before = builder_fingerprint([tmp_path])
    (tmp_path / "code.pyc").write_bytes(b"what the interpreter keeps")
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "loop.py").write_text("LEASE_S = 1\n")
    assert builder_fingerprint([tmp_path]) == before
    code.write_text("SCALE = 2\n")
    changed = builder_fingerprint([tmp_path])
    code.rename(tmp_path / "code.py")
    assert len({before, changed, builder_fingerprint([tmp_path]), builder_fingerprint()}) == 4


def test_another_source_makes_all_anew(tmp_path):
    world = World(tmp_path)
    world.run(counting())
    world.source_file.write_text("ab c")
    assert world.run(counting()) == 3
    assert [run.cached for run in world.runs[3:]] == [False] * 3


@pytest.mark.parametrize("opened_again", [False, True])
@pytest.mark.parametrize("damage", ["changed", "shorter", "missing", "extra", "manifest"])
def test_a_damaged_artifact_is_removed_counted_and_made_again(tmp_path, damage, opened_again):
    world = World(tmp_path)
    world.run(counting())
    folder = world.runs[1].artifact.path
    file = folder / "deep" / "lengths.txt"
    file.chmod(0o644)
    if damage == "changed":
        file.write_text(file.read_text().replace("3", "4"))
    elif damage == "shorter":
        os.truncate(file, 1)
    elif damage == "missing":
        file.unlink()
    elif damage == "extra":
        (folder / "deep" / "more.txt").write_text("1\n")
    else:
        manifest = folder.parent / "manifest.json"
        manifest.chmod(0o644)
        manifest.write_text(manifest.read_text()[:20])
    if opened_again:
        world = World(tmp_path, runs=world.runs)
        # Of what is of the right size the disk has to be asked.
        assert folder.exists() == (damage == "changed")
    assert world.run(counting()) == TOTAL
    assert [run.cached for run in world.runs[3:]] == [True, False, True]
    assert [run.replaced for run in world.runs] == [False] * 4 + [True, False]
    assert world.store.num_damaged == 1
    warnings = [warning for run in world.runs[3:] for warning in run.report.outcome.warnings]
    assert sum("damaged" in warning for warning in warnings) == 1
    # It is told once, not for ever.
    world.run(counting())
    assert [run.cached for run in world.runs[6:]] == [True, True, True]
    assert not any("damaged" in warning for run in world.runs[6:] for warning in run.report.outcome.warnings)
    assert file.read_text().split() == ["3", "5", "5", "3"]


def test_a_stage_that_raises_leaves_nothing_under_its_name(tmp_path):
    def fail(number, file):
        if number == 2:
            raise ValueError("a fault")

    world = World(tmp_path)
    with pytest.raises(ValueError, match="a fault"):
        world.run(counting(lengths=Lengths(fail)))
    assert drafts(world) == []
    assert len(world.store.entries()) == 1
    assert world.run(counting()) == TOTAL


def test_cancelled_inside_a_stage_goes_on_at_that_stage(tmp_path):
    world = World(tmp_path)

    def cancel(number, file):
        if number == 2:
            world.cancellation.ask()

    with pytest.raises(Cancelled):
        world.run(counting(lengths=Lengths(cancel)))
    assert len(world.store.entries()) == 1
    again = World(tmp_path)
    assert again.run(counting()) == TOTAL
    assert [run.cached for run in again.runs] == [True, False, False]


def test_cancelled_between_stages_keeps_those_that_ended(tmp_path):
    world = World(tmp_path)

    class Stop(list):
        def append(self, run):
            super().append(run)
            world.cancellation.ask()

    world.runs = Stop()
    with pytest.raises(Cancelled):
        world.run(counting())
    assert [entry.kind for entry in world.store.entries()] == ["AdaptedModel"]


def test_a_gate_that_fails_stops_names_the_worst_tensors_and_keeps_the_artifact(tmp_path):
    world = World(tmp_path)
    gate = Gate(metric="total_characters", at_least=100)
    with pytest.raises(GateFailed) as caught:
        world.run(counting(total=Total(gates=(gate,))))
    message = caught.value.message
    assert "total_characters >= 100 does not hold (16)" in message
    assert message.index("layers.1.down_proj (3.2 dB)") < message.index("lm_head (9.0 dB)")
    assert (caught.value.run.artifact.path / "total.json").read_text() == str(TOTAL)
    # Tenants are told it, too: nothing of where the store is.
    assert str(tmp_path) not in message + caught.value.hint

    # Fails again without another run, and holds without another run once the limit is another.
    strict, lenient = Total(gates=(gate,)), Total(gates=(Gate(metric="total_characters", at_least=10),))
    with pytest.raises(GateFailed):
        world.run(counting(total=strict))
    assert world.run(counting(total=lenient)) == TOTAL
    assert strict.runs == lenient.runs == 0


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_gate_on_what_was_not_measured_does_not_hold(value):
    assert not Gate(metric="mean_kl_nats", at_most=0.1).passes(value)


def test_progress_tells_stage_step_and_word(tmp_path):
    world = World(tmp_path)
    world.run(counting())
    assert [(p.stage, p.done, p.total, p.what) for p in world.progress][1] == ("lengths", 1, 4, "quick")


def test_builders_of_one_result_make_it_once(tmp_path):
    """Threads here; locks are those between processes, which have a test of their own."""
    World(tmp_path)
    lengths = Lengths(lambda number, file: None)
    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lambda _: World(tmp_path).run(counting(lengths=lengths)), range(4)))
    assert totals == [TOTAL] * 4
    assert lengths.runs == 1


def test_a_builder_that_waits_for_another_can_be_cancelled(tmp_path):
    def inside(number, file):
        waiting = World(tmp_path)
        threading.Timer(0.3, waiting.cancellation.ask).start()
        with pytest.raises(Cancelled):
            waiting.run(counting())

    assert World(tmp_path).run(counting(lengths=Lengths(inside))) == TOTAL


CHILD = """
import os, sys, time
from pathlib import Path
from fakes.edge_stages import Lengths, World, counting
ready = Path(sys.argv[2])
def stop(number, file):
    if number == 2 and sys.argv[3] == "stop":
        assert file.read_text() == "3\\n5\\n"
        ready.touch()
        time.sleep(60)
lengths = Lengths(stop)
print(World(Path(sys.argv[1])).run(counting(lengths=lengths)), lengths.runs)
"""


def child(folder: Path, ready: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), str(ready), how]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)


def test_killed_inside_a_stage_goes_on_at_that_stage(tmp_path):
    folder, ready = tmp_path / "world", tmp_path / "ready"
    World(folder)
    process = child(folder, ready, "stop")
    wait_for(ready, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # Only the first stage has its name; the other's draft is there with its two lines.
    left = [path.name for path in (folder / "store" / "objects").iterdir()]
    assert len(left) == 1
    assert len(list((folder / "store" / "drafts").iterdir())) == 1

    world = World(folder)
    assert drafts(world) == []
    assert world.run(counting()) == TOTAL
    assert [run.cached for run in world.runs] == [True, False, False]


def test_processes_that_build_the_same_make_it_once(tmp_path):
    folder = tmp_path / "world"
    World(folder)
    processes = [child(folder, tmp_path / "unused", "go") for _ in range(3)]
    told = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [total for total, _ in told] == [str(TOTAL)] * 3
    assert sum(int(runs) for _, runs in told) == 1


def test_what_another_process_is_making_is_no_leftover(tmp_path):
    folder, ready = tmp_path / "world", tmp_path / "ready"
    World(folder)
    process = child(folder, ready, "stop")
    try:
        wait_for(ready, process)
        world = World(folder)
        assert len(drafts(world)) == 1
        assert world.store.collect(0) == []  # what it reads stays, too
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("write: No space left on device")]
)
def test_a_full_disk_is_named_whichever_library_met_it(tmp_path, error):
    def fail(number, file):
        raise error

    world = World(tmp_path)
    with pytest.raises(NoSpace, match="no space left") as caught:
        world.run(counting(lengths=Lengths(fail)))
    assert "--store" in caught.value.hint
    assert drafts(world) == []


def test_a_disk_that_is_really_full_leaves_nothing_half_written(small_disk):
    def fill(number, file):
        with file.with_name("much.bin").open("ab") as much:
            much.write(b"\0" * 100_000)

    world = World(small_disk("128k"))
    with pytest.raises(NoSpace):
        world.run(counting(lengths=Lengths(fill)))
    assert drafts(world) == []
    assert [entry.kind for entry in world.store.entries()] == ["AdaptedModel"]
    assert world.run(counting()) == TOTAL


ORDER = """
from fakes.edge_stages import Lengths, Total, Words
from octavo_edge.artifacts import QuantisedGraph, SourceModel
from octavo_edge.pipeline import Pipeline, pipeline

right: Pipeline[SourceModel, QuantisedGraph] = pipeline(Words()).then(Lengths()).then(Total())
"""


def types_of(tmp_path: Path, code: str) -> str:
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    file = tmp_path / "snippet.py"
    file.write_text(textwrap.dedent(code))
    settings = tmp_path / "pyrightconfig.json"
    paths = [str(ROOT / part) for part in ("tests", "services/common", "services/edge_builder", "sdk")]
    settings.write_text(f'{{"extraPaths": {paths}, "typeCheckingMode": "standard"}}'.replace("'", '"'))
    command = [sys.executable, "-m", "basedpyright", "--level", "error", "-p", str(tmp_path), "--outputjson"]
    pythonpath = ["--pythonpath", sys.executable]
    return subprocess.run([*command, *pythonpath], capture_output=True, text=True, check=False).stdout


def test_stages_in_their_order_are_typed(tmp_path):
    assert '"errorCount": 0' in types_of(tmp_path, ORDER)


def test_stages_in_a_wrong_order_are_a_type_error_that_names_both_kinds(tmp_path):
    told = types_of(tmp_path, ORDER + "wrong = pipeline(Words()).then(Total())\n")
    assert '"errorCount": 1' in told
    assert "AdaptedModel" in told
    assert "OptimisedGraph" in told
